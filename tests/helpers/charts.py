"""What a chart draws, read from its specification."""


def leaves(spec, data=None):
    """Return the views within a chart, each with its data or that of the chart around it."""
    held = spec.get("data", data)
    inner = [
        leaf
        for part in ("layer", "concat")
        for one in spec.get(part, ())
        for leaf in leaves(one, held)
    ]
    return inner or [{**spec, "data": held}]


def marks(chart):
    """Return the rows that each layer draws, by its mark."""
    spec, found = chart.to_dict(), {}
    for leaf in leaves(spec):
        data = leaf["data"]
        rows = spec["datasets"][data["name"]] if "name" in data else data["values"]
        found.setdefault(leaf["mark"]["type"], []).append(rows)
    return found


def drop_downs(chart):
    """Return the values that each drop-down of a chart offers, by its label."""
    params = chart.to_dict().get("params", ())
    return {
        param["bind"]["name"].strip(): param["bind"]["options"]
        for param in params
        if "bind" in param
    }
