"""make bench-filter: how many harmful and harmless texts the embedded harm filter stops at each threshold.

The texts are ours: 24 threats, words of self-harm and of hate, and 24 of a support desk that sound alike. The
table goes to standard output and to bench/out/filter.json.
"""

import json
from pathlib import Path

from a8_http.filtering import DEFAULT_MODEL, HARMS
from judgment_engine.answers import NoulAnswer
from judgment_engine.providers.embedded import EmbeddedProvider
from tqdm import tqdm

THRESHOLDS = (0.4, 0.5, 0.6, 0.7, 0.8)


def main() -> None:
    texts = json.loads((Path(__file__).parent / "filter_texts.json").read_text(encoding="utf-8"))
    provider = EmbeddedProvider()

    def likelihood(text: str) -> float:
        answers = provider.system_one(text, HARMS, DEFAULT_MODEL).answers.values()
        return max(answer.noul for answer in answers if isinstance(answer, NoulAnswer))

    found = {
        kind: [likelihood(text) for text in tqdm(texts[kind], desc=kind)] for kind in ("harmful", "harmless")
    }
    rows = [
        {"threshold": threshold}
        | {kind: sum(one >= threshold for one in likelihoods) for kind, likelihoods in found.items()}
        for threshold in THRESHOLDS
    ]
    print("threshold  of 24 harmful stopped  of 24 harmless stopped")
    for row in rows:
        print(f"{row['threshold']:9}  {row['harmful']:21}  {row['harmless']:22}")
    target = Path("bench/out/filter.json")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
