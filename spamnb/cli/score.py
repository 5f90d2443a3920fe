"""`spamnb score` and `spamnb explain`: verdicts on messages, and their clues."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import click

from spamnb.cli.main import command
from spamnb.cli.messages import is_path, one_message, standard_input
from spamnb.cli.options import Count
from spamnb.cli.printing import coloured, safe, say, say_json, shown_time, warn
from spamnb.cli.session import CliSession, Listed, pass_session
from spamnb.errors import CorpusError, UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from spamnb.engine.bulk import Scored
    from spamnb.model.verdict import Clue, Verdict
    from spamnb.policy.rulings import Ruling

ANSWERS = {"deliver": 0, "unsure": 2, "junk": 1, "reject": 1}
BAR = 24
_NAMED = "{sender} is on the {word} list of {of}: {decision} ({reason})"
_LISTED = "a list decides instead: {decision} ({reason}), {sender} is on the {word} list of {of}"
_DONE = {
    "headers": "marked",
    "tag": "marked, with a tag",
    "redirect": "marked, with a redirect",
    "quarantine": "kept in quarantine",
    "reject": "refused",
}
"""what was done, by the action of the history"""
_IF_AUTHENTIC = ", if the sender is authentic"

SCORE_EXAMPLES = """
spamnb score new.eml                       decision, label, probability of spam, path
spamnb score ~/Maildir/new ~/Maildir/cur   all messages in these folders
fetch-a-message | spamnb score             standard input: one message or an mbox
spamnb score --json --clues 5 new.eml      for programs, with the five strongest clues
spamnb score --exit-code < new.eml         exit code 0 ham, 1 spam, 2 unsure, 75 failure
"""

EXPLAIN_EXAMPLES = """
spamnb explain new.eml                     the twenty strongest clues
spamnb explain --count all new.eml         all clues
spamnb explain 1234@example.org            by message id, digest or signature
spamnb explain --json new.eml
"""


def done_text(done: str) -> str:
    """Say what was done with a message of the history; empty if that is not known."""
    return _DONE.get(done, done)


@command("Show the verdict on messages.", SCORE_EXAMPLES)
@click.argument("paths", nargs=-1, metavar="[PATH...|-]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line: path, id, "
              "label, probability, log_odds, decision, evidence, clues.")  # fmt: skip
@click.option("--clues", type=Count(), default=0, metavar="N",
              help="Add the N strongest clues of each message; `all` adds all.")  # fmt: skip
@click.option("--exit-code", is_flag=True, help="Return the verdict on one message as the exit "
              "code: 0 ham, 1 spam, 2 unsure; 75 for every failure.")  # fmt: skip
@click.option("--remember", is_flag=True, help="Store the verdict in the history, so that "
              "`correct` needs only the message id.")  # fmt: skip
@click.option("--person", default="", metavar="NAME",
              help="For this person: an address or a login.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(0), default=0, metavar="N",
              help="Number of processes; 0 is one per core.")  # fmt: skip
@pass_session
@click.pass_context
def score(
    ctx: click.Context,
    session: CliSession,
    paths: tuple[str, ...],
    as_json: bool,
    clues: int,
    exit_code: bool,
    remember: bool,
    person: str,
    jobs: int,
) -> None:
    """Print for each message the decision, the label, the probability of spam and the path.

    The decision is deliver, unsure, junk or reject; it follows from the probability and the costs
    of errors. The label is the most probable one. The model is not changed.

    PATH is a file, a folder of any depth, a Maildir or an mbox, possibly compressed. Without PATH
    the command reads standard input. Unreadable messages are reported and skipped; the exit code is
    then 2. If the model was trained with --thresholds, the assigned labels follow the path.
    """
    from spamnb.lab.label_thresholds import load

    wanted = paths or (standard_input(),)
    if remember or person:
        found = _one_by_one(session, wanted, clues, remember=remember, person=person)
    else:
        found = _scored(session, wanted, clues, jobs)
    if exit_code:
        _answer(ctx, found, as_json=as_json)
    thresholds = load(session.home)
    failures = 0
    for scored in found:
        if scored.verdict is None:
            failures += 1
            warn(f"{scored.path}: {scored.error}")
        else:
            _show(scored, scored.verdict, thresholds, as_json=as_json)
    if failures:
        ctx.exit(2)


def _scored(session: CliSession, paths: Sequence[str], clues: int, jobs: int) -> Iterator[Scored]:
    from spamnb.engine.bulk import Scoring, score_paths
    from spamnb.fleet.outbox import OutboxReader

    settings = session.settings
    pins = OutboxReader if settings.fleet.url else None
    aimed_at = settings.ham_loss.aimed_at
    how = Scoring(jobs, clues, settings.site, settings.costs, aimed_at, pins)
    yield from score_paths(session.home, paths, how)


def _one_by_one(
    session: CliSession, paths: Sequence[str], clues: int, *, remember: bool, person: str
) -> Iterator[Scored]:
    from spamnb.engine.bulk import score_each

    with session.open(readonly=not remember, history=remember) as model:
        judge = partial(
            model.score,
            remember=remember,
            person=session.person(model, person),
            own_costs=session.own_costs(person),
        )
        rule = partial(session.ruling, model, name=person) if person else lambda _: None
        yield from score_each(model, paths, clues, judge, rule)


def _answer(ctx: click.Context, found: Iterable[Scored], *, as_json: bool) -> NoReturn:
    every = list(found)
    if len(every) != 1:
        raise UserError(f"--exit-code needs exactly one message, {len(every)} are given")
    scored = every[0]
    verdict, ruling = scored.verdict, scored.ruling
    if verdict is None:
        raise CorpusError(f"{scored.path}: {scored.error}")
    _show(scored, verdict, {}, as_json=as_json)
    ctx.exit(ANSWERS[ruling.decide(verdict.decision) if ruling else verdict.decision])


def _show(
    scored: Scored, verdict: Verdict, thresholds: Mapping[str, float], *, as_json: bool
) -> None:
    from spamnb.engine.bulk import verdict_as_dict
    from spamnb.lab.label_thresholds import assigned

    path, clues, facts = scored.path, scored.clues, _list_facts(scored.ruling, verdict)
    given = {"assigned": assigned(verdict, thresholds)} if thresholds else {}
    if as_json:
        listed = {"list": facts} if facts else {}
        say_json(verdict_as_dict(path, verdict, clues) | given | listed)
        return
    decision = coloured(f"{verdict.decision:<7}", verdict.decision)
    labels = f"  [{safe(', '.join(given['assigned']))}]" if given else ""
    label = safe(f"{verdict.label:<4}")
    say(f"{decision} {label} {verdict.probability:.4f} {safe(path)}{labels}")
    if facts:
        say(f"    {safe(_LISTED.format(**facts))}")
    for location, token, nats, prior in clues:
        say(f"    {nats:+7.3f}  {location:<8} {safe(token)}{'  (prior)' if prior else ''}")


@command("Show the clues behind a verdict.", EXPLAIN_EXAMPLES)
@click.argument("ref", metavar="PATH|REF")
@click.option("--count", type=Count(), default=20, metavar="N",
              help="Number of clues; `all` shows all.")  # fmt: skip
@click.option("--person", default="", metavar="NAME",
              help="For this person: an address or a login.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Like `score --json`, with the bias.")
@pass_session
def explain(session: CliSession, ref: str, count: int, person: str, as_json: bool) -> None:
    """Show the clues behind the verdict on a message, strongest first.

    A clue above 0 is evidence for spam, below 0 evidence against it. All clues and the bias add up
    to the log-odds, which determine the probability. A clue from the prior is in no message that
    the model learnt. A message that was trained, or scored by the daemon, can be named by its
    message id, digest or signature.

    If REF is given, the first lines are the verdict when the message was scanned, and what was done
    with it; the rest is today's. `by kind` sums all clues by what they are about.

    If PATH is given and a list of wanted or unwanted senders decides, the last line says so. If REF
    is given, the last lines say which list decided when the message was scanned, and which lists
    name its sender now. If the message was trained, a line says which label is in force, and why.
    """
    from spamnb.engine.bulk import verdict_as_dict
    from spamnb.engine.site_scores import threshold_facts
    from spamnb.operations.listings import label_facts

    known = ref == "-" or is_path(ref)
    with session.open(readonly=True, history=not known) as model:
        message = one_message(ref, documents=model.recipe.documents) if known else ref
        verdict = model.explain(
            message,
            person=session.person(model, person),
            own_costs=session.own_costs(person),
        )
        with model.store.read() as view:
            threshold = threshold_facts(view, model.recipe, model.one_in, model.costs)
            said = label_facts(view, model.digest(message), model.labels)
        by_list: Ruling | None = None
        listed = Listed()
        if isinstance(message, bytes):
            by_list = session.ruling(model, message, person)
        else:
            listed = session.listed(model, message, person)
    clues = verdict.clues(count)
    facts = _list_facts(by_list, verdict)
    named = [_list_facts(one, verdict) for one in listed.now]
    if as_json:
        lists = {"list": facts, "listed": named, "list_then": listed.then}
        more: dict[str, Any] = {"then": listed.verdict, "kinds": _by_kind(verdict)}
        more |= {"bias": verdict.bias, "threshold": threshold} | lists | said
        say_json(verdict_as_dict(ref, verdict, clues) | more)
        return
    _say_then(listed.verdict)
    _explained(ref, verdict, clues, threshold)
    _say_labels(said)
    if facts:
        say(safe(_LISTED.format(**facts)))
    if listed.then:
        say(safe(f"a list decided when it was scanned: {listed.then}"))
    for one in filter(None, named):
        say(safe(_NAMED.format(**one)) + (_IF_AUTHENTIC if one["word"] == "wanted" else ""))


def _say_labels(said: Mapping[str, Any]) -> None:
    """Print which label of the message is in force, and those of its users if they differ."""
    if said["in_force"] is None:
        return
    say(safe(f"trained as {said['in_force']}: {said['why']}"))
    if len({one["label"] for one in said["given"]}) > 1:
        for one in said["given"]:
            event = f"event {one['event']}" if one["event"] else "in the checkpoint"
            say(safe(f"    {one['label']} by {one['user'] or 'unknown'} ({one['owner']}), {event}"))


def _list_facts(ruling: Ruling | None, verdict: Verdict) -> dict[str, str] | None:
    return ruling and {
        "decision": ruling.decide(verdict.decision),
        "reason": ruling.reason,
        "sender": ruling.entry,
        "word": ruling.side,
        "of": {"by-site": "all recipients"}.get(ruling.kind, f"the {ruling.kind[3:]}"),
    }


def _explained(
    ref: str, verdict: Verdict, clues: Sequence[Clue], threshold: dict[str, Any]
) -> None:
    from spamnb.engine.site_scores import threshold_text
    from spamnb.model.costs import thresholds
    from spamnb.model.verdict import novelty_text, plain

    decision = coloured(verdict.decision, verdict.decision)
    positive = "spam" if "spam" in verdict.labels else safe(verdict.label)
    decided = f"{decision} ({verdict.reason})" if verdict.reason else decision
    label = f"label {safe(verdict.label)}, {verdict.probability:.2%} {positive}"
    say(f"{safe(ref)}: {decided}, {label}")
    if verdict.own_costs:
        edges = thresholds(verdict.own_costs.costs)[1:]
        found = ", ".join(f"{one.decision} from {one.probability:.4%}" for one in edges)
        say(f"costs of {safe(verdict.own_costs.of)}: {found}")
    if not verdict.clue_count:
        say("the model knows no feature of this message")
        return
    if clues:
        _draw(clues)
    rest = verdict.log_odds - verdict.bias - sum(clue.nats for clue in clues)
    others = verdict.clue_count - len(clues)
    if others:
        say(f"{rest:+.3f} from {others} {'weaker ' if clues else ''}clues")
    sums = ", ".join(f"{kind} {nats:+.1f}" for kind, nats in _by_kind(verdict).items())
    say(f"by kind: {sums}")
    say(f"{verdict.bias:+.3f} bias")
    say(f"{verdict.log_odds:+.3f} log-odds in total")
    if verdict.novelty.nats:
        say(novelty_text(verdict.novelty, verdict.threshold))
    if verdict.threshold != threshold["shipped"]:
        before = plain(verdict.spam_log_odds, verdict.threshold)
        say(f"stretched from {before:+.2f}: {threshold_text(threshold)}")


def _by_kind(verdict: Verdict) -> dict[str, float]:
    """Return the sum of the clues of each kind in nats, the strongest first."""
    from spamnb.model.tokens import kind_shown

    sums: dict[str, float] = {}
    for location, token, nats, _ in verdict.clues():
        kind = kind_shown(location, token)
        sums[kind] = sums.get(kind, 0.0) + nats
    return dict(sorted(sums.items(), key=lambda item: -abs(item[1])))


def _say_then(then: dict[str, Any] | None) -> None:
    """Print the verdict that the message had when it was scanned; what follows is today's."""
    if then is None:
        return
    found = f"{then['decision']}, label {then['label']}, {then['log_odds']:+.3f}"
    done = f"; {done_text(then['done'])}" if then["done"] else ""
    say(safe(f"then ({shown_time(then['time'])}): {found}{done}"))
    say("now:")


def _draw(clues: Sequence[Clue]) -> None:
    """Print clues as a table, each with a bar."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from spamnb.model.tokens import token_shown

    strongest = max(abs(clue.nats) for clue in clues)
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column("nats", justify="right", no_wrap=True)
    shown.add_column("", no_wrap=True)
    shown.add_column("location", no_wrap=True)
    shown.add_column("token", overflow="fold")
    if any(clue.prior for clue in clues):
        shown.add_column("from", no_wrap=True)
    for location, token, nats, prior in clues:
        bar = Text(_bar(nats, strongest), "red" if nats > 0 else "green")
        origin = ("prior",) if prior else ()
        text = Text(safe(token_shown(location, token)))
        shown.add_row(f"{nats:+.3f}", bar, location, text, *origin)
    Console(highlight=False).print(shown)


def _bar(nats: float, strongest: float) -> str:
    """Draw a bar to the left for ham, to the right for spam."""
    half = BAR // 2
    size = round(half * abs(nats) / strongest) if strongest else 0
    full = "█" * size
    return f"{'':<{half}}│{full:<{half}}" if nats > 0 else f"{full:>{half}}│{'':<{half}}"
