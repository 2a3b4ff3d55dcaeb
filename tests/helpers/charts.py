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


def look(chart):
    """Return what a chart looks like in lines: heading and height, drop-downs, channels, and the marks that share them.

    A later mark names the channels that it has otherwise; tooltips are named where they are not those of the axes.
    """
    spec, first = chart.to_dict(), {}
    heading = [spec.get("title"), spec.get("description"), spec.get("height")]
    lines = [" | ".join(dict.fromkeys(str(word) for word in heading if word))]
    for param in spec.get("params", ()):
        if "bind" in param:
            names = param["bind"].get("labels", param["bind"]["options"])
            lines.append(f"{param['bind']['name'].strip()}: {', '.join(map(str, names))}")
    for leaf in leaves(spec):
        own = {name: _channel(one) for name, one in leaf["encoding"].items() if name != "tooltip"}
        titles = {_title(one) for one in leaf["encoding"].values() if isinstance(one, dict)}
        tips = [tip["title"] for tip in leaf["encoding"].get("tooltip", ())]
        more = [tip for tip in tips if tip not in titles]
        own |= {"tip": ", ".join(more)} if more else {}
        shown = [f"{name} {own[name]}" for name in sorted(own) if own[name] != first.get(name)]
        lines.append(f"{leaf['mark']['type']}: {'; '.join(shown)}".removesuffix(": "))
        first = first or own
    return lines


def _channel(channel):
    """Return a channel in words: what it shows, by which title, on which scale and axis."""
    if isinstance(channel, list):
        return ", ".join(one["field"] for one in channel)
    words = [str(channel.get("field", channel.get("value", channel.get("datum", ""))))]
    title = _title(channel)
    words += [repr(title)] if title else []
    scale, axis = channel.get("scale") or {}, channel.get("axis") or {}
    words += [str(scale[part]) for part in ("type", "domain", "domainMid") if part in scale]
    words += [scale[part]["expr"] for part in ("domainMin", "domainMax") if part in scale]
    words += [axis["format"]] if "format" in axis else []
    return " ".join(words)


def _title(channel):
    """Return the title of a channel, in one line."""
    title = channel.get("title")
    return " ".join(title) if isinstance(title, list) else title


def looks(charts):
    """Return what charts look like as a text: each one's name, and the lines of `look` below it."""
    return "\n".join("\n    ".join([name, *look(chart)]) + "\n" for name, chart in charts.items())


def drawn(chart, *columns):
    """Return the values of some columns in the first data of a chart, row by row."""
    (rows, *_), *_ = marks(chart).values()
    return [tuple(row[column] for column in columns) for row in rows]
