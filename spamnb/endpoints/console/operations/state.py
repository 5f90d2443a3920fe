"""The state of the daemon and of the caller, and switches of the daemon."""

from __future__ import annotations

from spamnb.endpoints.console.site import ApiReply, ApiRequest, ConsoleSite
from spamnb.service.engine.clock import iso
from spamnb.store.series import STEPS

_LAST_S = 1 << 40


def health(site: ConsoleSite, _: ApiRequest) -> ApiReply:
    """Whether messages can be scored."""
    with site.reading():
        return ApiReply({"ok": True})


def metrics(site: ConsoleSite, _: ApiRequest) -> ApiReply:
    """Counters in the format of Prometheus."""
    text = site.ask("metrics").body
    return ApiReply(data=text, media_type="text/plain; version=0.0.4; charset=utf-8")


def series(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """How a counter grew, by minute, quarter of an hour or day."""
    values = request.values
    name, step = values["name"], values["step"]
    since, until = values["since"] // 1_000_000, values["until"] // 1_000_000 or _LAST_S
    points = site.series.points(name, step, since, until)
    found = [{"time": iso(at * 1_000_000), "value": value} for at, value in points]
    return ApiReply({"name": name, "step_s": STEPS[step].seconds, "points": found})


def status(site: ConsoleSite, _: ApiRequest) -> ApiReply:
    """The facts of `spamnb status --json`."""
    return ApiReply(site.ask("status").header["status"])


def fleet(site: ConsoleSite, _: ApiRequest) -> ApiReply:
    """The hosts of the fleet, as this host has last heard of them."""
    alone = {"fault": "", "lag_s": 0, "waiting": 0, "host": "", "hosts": []}
    return ApiReply(site.ask("status").header["status"].get("fleet", alone))


def settings(site: ConsoleSite, _: ApiRequest) -> ApiReply:
    """The settings in force: value, default and help text of each; secrets are masked."""
    return ApiReply(site.settings._asdict())


def bypass(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Turn the bypass on or off: while it is on, all mail passes unscanned."""
    return ApiReply(site.ask("bypass", on=request.values["on"]).header)


def reload(site: ConsoleSite, _: ApiRequest) -> ApiReply:
    """Read the settings again, and open a model that could not be opened."""
    return ApiReply(site.ask("reload").header)


def me(_: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Who the caller is, and what the caller may do."""
    caller = request.caller
    return ApiReply(
        {"name": caller.name, "user": caller.user, "scopes": sorted(caller.scopes)}
    )  # fmt: skip
