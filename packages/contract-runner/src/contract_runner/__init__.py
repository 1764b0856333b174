"""Holds a running judgment server against its pinned contract."""
