"""Puts the repository's contracts/ into the wheel; an editable install reads them where they are."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ContractsHook(BuildHookInterface):  # pyright: ignore[reportMissingTypeArgument] - generic only for builders
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable":
            contracts = Path(self.root).parents[1] / "contracts"
            build_data["force_include"][str(contracts)] = "contract_runner/contracts"
