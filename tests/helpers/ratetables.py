"""Token identifiability results with given rates, for tests of what is made from them."""

import polars as pl

from identilens.studies.tokens.result import TokenIdentifiability

SCRIPT = "<script>alert(1)</script>"
RECORD = {
    "analysis": "tokens",
    "fingerprint": "f2" * 32,
    "model": {"name": f"models/{SCRIPT}", "sha256": "ab" * 32},
    "settings": {"probes": ["naive"], "compared": None},
    "command": ["identilens", "tokens"],
    "libraries": {},
    "finished": True,
    "texts": {"count": 20, "sha256": ["00"] * 20},
}


def rates_of(experiment, rows, **settings):
    """A result from rows that name what differs from a usual one; two folds, the second 0.02 better."""
    usual = {
        "experiment": experiment,
        "checkpoint": "model",
        "probe": "linear",
        "distance": "cosine",
        "layer_trained": 1,
        "layer_target": 0,
        "offset": 0,
        "share": 1.0,
        "token_rate": 0.9,
        "train_rate": None,
        "chance": 0.1,
        "token_chance": 0.2,
        "validation_loss": None,
        "tokens": 30,
        "sentences": 3,
        "train_tokens": 140,
        "learning_rate": None,
        "penalty": None,
        "epochs": None,
        "best_epoch": None,
        "converged": None,
    }
    table = []
    for row in rows:
        layer = row.get("layer_trained", 1)
        for fold in range(2):
            full = {**usual, "layer_tested": layer, "fold": fold, **row}
            table.append({**full, "rate": full["rate"] + 0.02 * fold})
    record = {**RECORD, "settings": {**RECORD["settings"], **settings}}
    columns = TokenIdentifiability.schema["table"]
    return TokenIdentifiability.of(
        {"table": pl.DataFrame(table, schema=pl.Schema(columns))}, record
    )


def same_layer():
    """Three layers, a naive and a trained probe."""
    trained = {"learning_rate": 0.001, "epochs": 30, "converged": True, "validation_loss": 0.3}
    rows = [
        {"probe": "naive", "layer_trained": layer, "rate": 0.9 - 0.2 * layer} for layer in (1, 2, 3)
    ]
    rows += [
        {"layer_trained": layer, "rate": 0.95 - 0.05 * layer, "train_rate": 0.97, **trained}
        for layer in (1, 2, 3)
    ]
    return rates_of("same-layer", rows)


def across_layers():
    """Trained on three layers, tested on three."""
    rates = [(trained, tested) for trained in (1, 2, 3) for tested in (1, 2, 3)]
    return rates_of(
        "across-layers",
        [
            {"layer_trained": one, "layer_tested": other, "rate": 0.9 - 0.1 * abs(one - other)}
            for one, other in rates
        ],
    )


def neighbours():
    """Two neighbours to each side, at two layers."""
    return rates_of(
        "neighbours",
        [
            {
                "layer_trained": layer,
                "offset": offset,
                "rate": 0.5 / abs(offset) - (0.1 if offset < 0 else 0.0),
            }
            for layer in (1, 2)
            for offset in (-2, -1, 1, 2)
        ],
    )


def shares():
    """Half of the training sentences, and all."""
    return rates_of(
        "data-share",
        [{"layer_trained": 5, "share": share, "rate": 0.4 + 0.2 * share} for share in (0.5, 1)],
    )


def two_checkpoints():
    """From layer to layer before and after fine-tuning."""
    rows = [
        {
            "checkpoint": name,
            "probe": "naive",
            "layer_trained": layer,
            "layer_target": layer - 1,
            "rate": rate - 0.1 * layer,
        }
        for name, rate in (("model", 0.9), ("compared", 0.7))
        for layer in (1, 2)
    ]
    return rates_of(
        "layer-to-layer", rows, compared={"name": f"tuned {SCRIPT}", "sha256": "cd" * 32}
    )
