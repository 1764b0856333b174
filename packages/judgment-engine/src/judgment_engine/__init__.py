"""Typed judgment questions, answers, acceptance policies, abstention and judgment providers."""
