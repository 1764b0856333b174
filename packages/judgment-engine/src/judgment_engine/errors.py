"""The engine's own refusal of bad input."""


class EngineError(ValueError):
    """Input the engine refuses; its text names the field, the rule it broke and the value that passes."""

    def __init__(self, field: str, rule: str, passes: str | None = None) -> None:
        self.field = field
        self.rule = rule
        self.passes = passes
        text = f"{field} {rule}".rstrip(".")
        super().__init__(f"{text}: {passes}." if passes else f"{text}.")
