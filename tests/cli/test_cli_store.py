"""Commands that look after a model, the settings and the help, on real stores."""

import json
import os
import re
import subprocess
import tomllib

import pytest
from support.cli import HAM, ONE_SPAM, SAMPLE, SPAM, spamnb, undated
from support.postfix import free_ports

from spamnb.cli.main import COMMANDS
from spamnb.cli.session import become_owner, speaker

pytestmark = pytest.mark.usefixtures("alone")


# --- looking -------------------------------------------------------------------------------------


def test_stats_tells_what_is_there(trained):
    """Messages, features, size and thresholds, for people and for programs."""
    plain = spamnb(trained, "stats", "--json").json[0]
    assert plain["messages"] == {"ham": 200, "spam": 200}
    assert plain["store_bytes"] == (trained / "data.mdb").stat().st_size
    each = plain["store_bytes"] / plain["features"]
    assert plain["bytes_per_feature"] == pytest.approx(each, abs=0.1)
    shown = spamnb(trained, "stats").out
    for word in ("messages ham", "features", "junk from", "0.994508", "kappa 1.0"):
        assert word in shown


def test_stats_and_check_leave_a_home_as_they_found_it(trained):
    """`stats` and `check` create no files."""
    before = sorted(path.name for path in trained.iterdir())
    spamnb(trained, "stats")
    spamnb(trained, "check")
    assert sorted(path.name for path in trained.iterdir()) == before


def test_check_finds_a_sound_store_sound(trained):
    """For a sound model `check` exits with 0 and prints so."""
    done = spamnb(trained, "check")
    assert (done.code, done.out.startswith("sound")) == (0, True)
    assert spamnb(trained, "check", "--json").json == [{"sound": True, "faults": []}]


def test_check_tells_each_contradiction_and_exits_1(home):
    """A number that the journal does not explain is found."""
    from spamnb.store.model_store import open_store

    store = open_store(home)
    with store.write() as view:
        totals = view.totals()
        totals.messages[0] += 1
        view.put_totals(totals)
    store.close()
    done = spamnb(home, "check")
    assert done.code == 1
    assert "messages is [201, 200], the journal says [200, 200]" in done.out
    assert done.lines[-1] == "1 contradictions"


# --- copies --------------------------------------------------------------------------------------


def test_a_backup_comes_back_as_it_was(home, tmp_path):
    """Backup and restore keep every number; both are private."""
    copy = tmp_path / "model.spamnb"
    assert spamnb(home, "backup", copy).code == 0
    assert copy.stat().st_mode & 0o777 == 0o600
    done = spamnb(tmp_path / "again", "restore", copy)
    assert done.code == 0
    assert spamnb(tmp_path / "again", "export").out == spamnb(home, "export").out


def test_restore_replaces_a_model_on_demand_only(home, tmp_path):
    """A model that is there is safe without --force."""
    copy = tmp_path / "model.spamnb"
    spamnb(home, "backup", copy)
    spamnb(home, "correct", "ham", ONE_SPAM)
    refused = spamnb(home, "restore", copy)
    assert (refused.code, "--force" in refused.err) == (2, True)
    assert spamnb(home, "restore", "--force", copy).code == 0
    assert len(spamnb(home, "journal", "--limit", 0).lines) == 400


def test_restore_refuses_what_is_no_backup(tmp_path):
    """A wrong file makes no model."""
    (tmp_path / "wrong").write_bytes(b"no model at all" * 999)
    assert spamnb(tmp_path / "home", "restore", tmp_path / "wrong").code == 3
    assert not (tmp_path / "home" / "data.mdb").exists()


def test_export_is_private_and_whole(trained, tmp_path):
    """The file holds words of people's mail: 0600, and none is left half written."""
    target = tmp_path / "counts.jsonl"
    assert spamnb(trained, "export", target).code == 0
    assert target.stat().st_mode & 0o777 == 0o600
    lines = target.read_text().splitlines()
    header = json.loads(lines[0])
    assert header["features"] == len(lines) - 1
    assert "key" not in header
    assert [path.name for path in tmp_path.glob("counts*")] == ["counts.jsonl"]
    assert spamnb(trained, "export", tmp_path / "no" / "where").code == 2


def test_what_is_no_plain_file_is_not_replaced(trained, tmp_path):
    """A pipe stays a pipe, and a link leads to what was written."""
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(tmp_path / "counts")
    assert spamnb(trained, "backup", pipe).code == 2
    assert pipe.is_fifo()
    with (tmp_path / "read").open("wb") as read, subprocess.Popen(["cat", pipe], stdout=read):
        assert spamnb(trained, "export", pipe).code == 0
    assert pipe.is_fifo()
    assert spamnb(trained, "export", link).code == 0
    assert link.is_symlink()
    assert (tmp_path / "counts").read_bytes() == (tmp_path / "read").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["undo", 10**26], "not in the range"),
        (["journal", "--limit", -1], "not in the range"),
        (["history", "--decision", "nonsense"], "not one of"),
        (["correct", "ham", f"<{'a' * 300}@example.org>"], "no message with the reference"),
        (["explain", "a" * 300], "no message with the reference"),
        (["score", "{pipe}"], "neither a file nor a folder"),
        (["train", "--label", "M\u00fcll und so={spam}", "--label", "x={ham}"], "the labels are"),
        (["import", "{export}"], "fingerprint"),
    ],
)
def test_odd_values_are_the_users_mistake(trained, tmp_path, arguments, error):
    """A wrong value gets one line that says what is wrong, and never exit code 70."""
    places = {"pipe": tmp_path / "pipe", "export": tmp_path / "x", "spam": SPAM, "ham": HAM}
    os.mkfifo(places["pipe"])
    assert spamnb(trained, "export", places["export"]).code == 0
    head, _, rest = places["export"].read_text().partition("\n")
    odd = json.dumps(json.loads(head) | {"fingerprint": 7})
    places["export"].write_text(f"{odd}\n{rest}")
    home = tmp_path / "new" if arguments[0] == "train" else trained
    done = spamnb(home, *(str(word).format(**places) for word in arguments))
    assert (done.code, error in done.err, "bug" in done.err) == (2, True, False), done.err


def test_import_adds_and_undo_takes_it_back(home, tmp_path):
    """One event, one undo; a second undo takes nothing more."""
    target = tmp_path / "counts.jsonl"
    spamnb(home, "export", target)
    before = undated(target.read_text())
    event = spamnb(home, "import", "--json", target).json[0]["event"]
    assert spamnb(home, "stats", "--json").json[0]["messages"] == {"ham": 400, "spam": 400}
    assert spamnb(home, "undo", event).code == 0
    assert undated(spamnb(home, "export").out) == before
    again = spamnb(home, "undo", event)
    assert (again.code, again.out.startswith("unchanged: already undone")) == (0, True)
    assert "nothing to undo" in again.out
    assert undated(spamnb(home, "export").out) == before
    assert spamnb(home, "check").code == 0


def test_import_names_the_home_that_cannot_be_made(home, tmp_path):
    """The home that cannot be made, not the export."""
    keyed = tmp_path / "keyed"
    spamnb(home, "export", "--with-key", keyed)
    (tmp_path / "file").touch()
    done = spamnb(tmp_path / "file" / "new", "import", "--as-new", keyed)
    assert done.code == 3
    assert f"{keyed} cannot be read" not in done.err
    assert f"{tmp_path}/file" in done.err


def test_import_as_new_needs_a_key_and_an_empty_place(home, tmp_path):
    """A new model is made only where none is, and only with its key."""
    plain, keyed = tmp_path / "plain", tmp_path / "keyed"
    spamnb(home, "export", plain)
    exported = spamnb(home, "export", "--with-key", keyed)
    assert "secret" in exported.err
    assert spamnb(tmp_path / "new", "import", "--as-new", plain).code == 2
    assert spamnb(home, "import", "--as-new", keyed).code == 2
    assert spamnb(tmp_path / "new", "import", "--as-new", keyed).code == 0
    same = spamnb(tmp_path / "new", "score", ONE_SPAM).out
    assert same == spamnb(home, "score", ONE_SPAM).out


def test_a_prior_starts_a_model_and_is_distinguished(trained, tmp_path):
    """stats, journal and bisect show what comes from the prior; one undo takes it back."""
    target, new = tmp_path / "prior.jsonl", tmp_path / "new"
    assert spamnb(trained, "export", "--prior", target).code == 0
    assert spamnb(trained, "export", "--prior", "--with-key").code == 2
    missing = spamnb(new, "import", target)
    assert (missing.code, "no model" in missing.err) == (3, True)
    assert spamnb(new, "import", "--as-new", target).code == 0
    assert spamnb(new, "import", "--as-new", target).code == 2
    assert spamnb(new, "train", HAM, SPAM).code == 0
    found = spamnb(new, "stats", "--json").json[0]
    assert found["messages"] == {"ham": 200, "spam": 200}
    features = json.loads(target.read_text().partition("\n")[0])["features"]
    assert found["prior"] == features > 400
    assert re.search(rf"of a prior +{features}$", spamnb(new, "stats").out, re.MULTILINE)
    assert "of a prior" not in spamnb(trained, "stats").out
    event = spamnb(new, "journal", "--channel", "prior", "--json").json[0]
    assert (event["event"], event["kind"]) == (1, "import")
    assert "/prior" in spamnb(new, "bisect", ONE_SPAM, "--limit", 0).out
    assert spamnb(new, "relearn", "--yes").code == 0
    assert spamnb(new, "stats", "--json").json[0]["prior"] == features
    assert spamnb(new, "undo", event["event"]).code == 0
    found = spamnb(new, "stats", "--json").json[0]
    assert (found["messages"]["ham"], found["prior"]) == (200, 0)
    assert spamnb(new, "check").code == 0


def test_a_new_model_begins_with_the_shipped_prior(tmp_path, monkeypatch):
    """The prior is the first event, and goes with the model; `rewind` and `undo` take it away."""
    monkeypatch.setenv("SPAMNB_MODEL_PRIOR", "true")
    home, copy = tmp_path / "new", tmp_path / "copy"
    few = [tmp_path / "ham", tmp_path / "spam"]
    for side in few:
        side.mkdir()
        for file in sorted((SAMPLE / side.name).iterdir())[:30]:
            (side / file.name).symlink_to(file)
    assert spamnb(home, "train", *few).code == 0
    found = spamnb(home, "stats", "--json").json[0]
    assert found["prior"] > 5_000
    assert found["messages"] == {"ham": 30, "spam": 30}
    assert spamnb(home, "journal", "--channel", "prior", "--json").json[0]["event"] == 1
    assert "spamnb/prior" in spamnb(home, "bisect", ONE_SPAM, "--limit", 0).out
    assert spamnb(home, "train", *few).code == 0  # all of it is known
    exported = undated(spamnb(home, "export").out)
    assert spamnb(home, "backup", tmp_path / "backup").code == 0
    assert spamnb(copy, "restore", tmp_path / "backup").code == 0
    assert spamnb(copy, "relearn", "--yes").code == 0
    assert undated(spamnb(copy, "export").out) == exported
    assert spamnb(copy, "undo", 1).code == 0
    assert spamnb(copy, "stats", "--json").json[0]["prior"] == 0
    assert spamnb(copy, "check").code == spamnb(home, "check").code == 0


@pytest.mark.parametrize(
    "options",
    [["--no-prior", HAM, SPAM], ["--kind", "bernoulli", HAM, SPAM], ["--plain", HAM, SPAM],
     ["--label", f"news={HAM}", "--label", f"other={SPAM}"]],
)  # fmt: skip
def test_a_model_without_a_prior_begins_empty(tmp_path, monkeypatch, options):
    """By an option, and if the shipped prior does not fit the model."""
    monkeypatch.setenv("SPAMNB_MODEL_PRIOR", "true")
    assert spamnb(tmp_path / "m", "train", *options).code == 0
    assert spamnb(tmp_path / "m", "stats", "--json").json[0]["prior"] == 0


def test_a_prior_with_odd_labels_makes_no_model(trained, tmp_path):
    """Labels of a new model must fit into headers and file names."""
    lines = spamnb(trained, "export", "--prior").out.replace('["ham","spam"]', '["ham","a b"]')
    (tmp_path / "odd").write_text(lines)
    done = spamnb(tmp_path / "new", "import", "--as-new", tmp_path / "odd")
    assert (done.code, "labels" in done.err) == (2, True)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("label", ["a b", "spam\r\nX-Spam-Flag: NO", "../x", "\x1b]0;x\x07"])
def test_an_export_with_odd_labels_makes_no_model(home, tmp_path, label):
    """Labels of an imported model become part of header fields, as those of a prior do."""
    header, *rest = spamnb(home, "export", "--with-key").out.splitlines(keepends=True)
    odd = json.loads(header) | {"labels": ["ham", label]}
    (tmp_path / "odd").write_text(json.dumps(odd) + "\n" + "".join(rest))
    done = spamnb(tmp_path / "new", "import", "--as-new", tmp_path / "odd")
    assert (done.code, "labels" in done.err) == (2, True)
    assert "\x1b" not in done.err
    assert not (tmp_path / "new").exists()


def test_an_error_controls_no_terminal(home, tmp_path):
    """Text of a file in an error is printed without control characters, also with -v."""
    header, *rest = spamnb(home, "export").out.splitlines(keepends=True)
    odd = json.loads(header) | {"kind": "\x1b]0;x\x07\u202e\x9b2J"}
    (tmp_path / "odd").write_text(json.dumps(odd) + "\n" + "".join(rest))
    for words in ((), ("-v",)):
        done = spamnb(home, *words, "import", tmp_path / "odd")
        assert (done.code, "the export's kind is" in done.err) == (2, True)
        assert not set(done.err) & set("\x1b\x07\x9b\u202e")


def test_import_refuses_what_is_no_export(home, tmp_path):
    """A wrong file changes nothing."""
    (tmp_path / "wrong").write_bytes(b"\xff\xfe")
    assert spamnb(home, "import", tmp_path / "wrong").code == 2
    assert spamnb(home, "import", tmp_path / "none").code == 2
    assert spamnb(home, "import", stdin=b"{}").code == 2
    assert spamnb(home, "check").code == 0


def test_expire_follows_the_settings(home, tmp_path):
    """New data stays; the figures are printed."""
    done = spamnb(home, "expire", "--json")
    assert done.json == [{"events_folded": 0, "features_dropped": 0, "verdicts_forgotten": 0}]


def test_compact_keeps_every_number(home):
    """The file may shrink, the model may not."""
    before = spamnb(home, "export").out
    sizes = spamnb(home, "compact", "--json").json[0]
    assert sizes["bytes_after"] <= sizes["bytes_before"]
    assert spamnb(home, "export").out == before


# --- settings, help, completion ------------------------------------------------------------------


def test_the_home_may_come_from_the_settings(trained, tmp_path, monkeypatch):
    """`home` in the file serves where neither flag nor variable says otherwise."""
    path = tmp_path / "spamnb.toml"
    path.write_text(f'home = "{trained}"\n')
    assert spamnb(None, "--config", path, "stats").code == 0
    monkeypatch.setenv("SPAMNB_HOME", str(tmp_path / "none"))
    assert spamnb(None, "--config", path, "stats").code == 3


def test_costs_of_the_settings_decide(trained, tmp_path):
    """The costs of the settings change the decision."""
    path = tmp_path / "spamnb.toml"
    path.write_text("[costs]\nunsure = [1e6, 0.9]\njunk = [2e6, 0.8]\nreject = [3e6, 0.7]\n")
    plain = spamnb(trained, "--config", path, "score", "--json", ONE_SPAM).json[0]
    assert (plain["label"], plain["decision"]) == ("spam", "deliver")


def test_config_example_is_toml_and_show_and_check_agree(tmp_path, monkeypatch):
    """`config check` accepts the output of `config example`."""
    if os.geteuid() == 0:  # without the user spamnb that the example means
        monkeypatch.setenv("SPAMNB_SERVE_USER", "root")
    text = spamnb(None, "config", "example").out
    assert tomllib.loads(text)["journal"]["keep_days"] == 400
    # The usual ports may be in use.
    checked, (front, delivery) = tmp_path / "checked.toml", free_ports(2)
    monkeypatch.setenv("SPAMNB_DELIVERY_ADDRESS", f"127.0.0.1:{delivery}")
    checked.write_text(f'{text}\n[listener.mail]\naddress = "127.0.0.1:{front}"\n')
    assert spamnb(tmp_path / "home", "--config", checked, "config", "check").code == 0
    path = tmp_path / "spamnb.toml"
    path.write_text(text)
    for name in ("SPAMNB_SERVE_USER", "SPAMNB_MODEL_PRIOR", "SPAMNB_DELIVERY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPAMNB_AUTH_VERIFY", "true")
    shown = spamnb(None, "--config", path, "config", "show").out
    assert tomllib.loads(shown) == tomllib.loads(text)
    plain = spamnb(None, "config", "show", "--json").json[0]
    assert plain["store.limit_bytes"] == 0


def test_config_check_tells_the_first_mistake(tmp_path):
    """Exit 2, one line with key, file and line."""
    path = tmp_path / "spamnb.toml"
    path.write_text("[store]\nlimit_bites = 1\n")
    done = spamnb(None, "--config", path, "config", "check")
    assert done.code == 2
    assert done.err == (
        f"spamnb: {path}, line 2: there is no setting store.limit_bites"
        " - did you mean store.limit_bytes?\n"
    )


def test_config_check_tells_every_problem(tmp_path):
    """Exit 2, one line for each thing that `serve` would refuse."""
    path = tmp_path / "spamnb.toml"
    lists = f'[rules]\nallow = "{tmp_path}/none"\nblock = "{tmp_path}/none either"\n'
    listener = '[listener.mx]\naddress = "127.0.0.1:0"\nupstream = "127.0.0.1:9"\n'
    path.write_text(f'{lists}{listener}[serve]\nuser = "no-such-user"\n')
    done = spamnb(tmp_path / "home", "--config", path, "config", "check")
    assert (done.code, done.out) == (2, "")
    lines = done.err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("spamnb: ") for line in lines)


@pytest.mark.parametrize("command", [*COMMANDS, "config example", "config show", "config check"])
def test_every_command_has_help(command):
    """One paragraph, the options; the examples are printed as they are written."""
    done = spamnb(None, *command.split(), "--help")
    assert done.code == 0
    assert done.out.startswith(f"Usage: spamnb {command}")
    if " " not in command:
        assert "\nExamples:\n  spamnb" in done.out or "| spamnb" in done.out


def test_every_command_has_its_line():
    """The list of commands is never cut off in the middle of a sentence."""
    done = spamnb(None, "--help")
    listed = done.out[done.out.index("Commands:") : done.out.index("Examples:")]
    assert "..." not in listed
    assert all(f"\n  {name} " in listed for name in COMMANDS)


def test_a_mistyped_command_gets_a_suggestion():
    """One line with the likely command; exit status 2."""
    done = spamnb(None, "trian")
    assert done.code == 2
    error = "there is no command 'trian'; did you mean train? - see `spamnb --help`"
    assert done.err == f"spamnb: {error}\n"
    assert spamnb(None).code == 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_for_every_shell(shell):
    """The completion script uses the variable of spamnb."""
    assert "_SPAMNB_COMPLETE" in spamnb(None, "completion", shell).out


def test_verbose_adds_the_traceback(tmp_path):
    """-v prints a traceback; without it an error is one line."""
    done = spamnb(tmp_path / "none", "-v", "stats")
    assert "Traceback" in done.err
    assert done.err.splitlines()[-1].startswith("spamnb: there is no model")


# --- user and group ------------------------------------------------------------------------------


def test_root_becomes_the_owner_of_the_home(tmp_path, monkeypatch):
    """Group first, then user: the other way round the group could not be changed any more."""
    calls = []
    owned = os.stat_result((0o40700, 1, 1, 1, 1234, 5678, 0, 0, 0, 0))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "setegid", lambda gid: calls.append(("gid", gid)))
    monkeypatch.setattr(os, "seteuid", lambda uid: calls.append(("uid", uid)))
    monkeypatch.setattr(type(tmp_path), "stat", lambda _: owned)
    assert become_owner(tmp_path) is True
    assert calls == [("gid", 5678), ("uid", 1234)]


def test_other_users_keep_their_identity(tmp_path, monkeypatch):
    """Without root, or on root's own or a missing home, nothing is changed."""
    monkeypatch.setattr(os, "setegid", lambda _: pytest.fail("changed"))
    monkeypatch.setattr(os, "seteuid", lambda _: pytest.fail("changed"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert become_owner(tmp_path) is False
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert become_owner(tmp_path / "none") is False


def test_behind_sudo_the_journal_names_the_person(monkeypatch):
    """The journal has SUDO_USER instead of root, and the number of a uid without a name."""
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setenv("SUDO_USER", "alice")
    assert speaker() == "alice"
    monkeypatch.setattr(os, "getuid", lambda: 3_999_999)
    assert speaker() == "3999999"
