"""`python -m a8_http` is the command a8-http."""

from a8_http.cli import app

app()
