"""Judgment providers: the ports, and the hosted and embedded providers behind them."""
