"""What all tests share: environment, profiles of hypothesis, corpora next to the project."""

import gc
import os
import signal
import sys
from pathlib import Path

# Before numpy is imported: its threads would make small tests slower, and sums depend on them.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Tests count events and messages from an empty model; tests of the shipped prior turn it on.
os.environ["SPAMNB_MODEL_PRIOR"] = "false"

# Tests compare delivered messages byte for byte; tests of the check of senders turn it on.
os.environ["SPAMNB_AUTH_VERIFY"] = "false"

import pytest
from hypothesis import settings

# A background job of a shell ignores SIGINT, and so would the programs that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = Path(__file__).resolve().parent
PROJECT = TESTS.parent
LONG = ("mail", "browser", "test_scripts.py", "test_docs.py", "faults", "cli")
"""folders and files that take long, the longest first"""
SLOW = frozenset({
    "browser/test_figure_pages.py",
    "browser/test_fleet_page.py",
    "browser/test_link_pages.py",
    "browser/test_preview_attacks.py",
    "browser/test_quarantine_pages.py",
    "browser/test_state_pages.py",
    "browser/test_stores.py",
    "browser/test_time_machine_page.py",
    "cli/test_cli_decisions.py",
    "cli/test_cli_fleet.py",
    "cli/test_cli_laboratory.py",
    "cli/test_cli_process.py",
    "cli/test_cli_rewind.py",
    "cli/test_cli_watch.py",
    "cli/test_switching.py",
    "endpoints/test_console_attacks.py",
    "endpoints/test_console_proxy.py",
    "endpoints/test_console_schema.py",
    "faults/test_console_faults.py",
    "faults/test_daemon_burst.py",
    "faults/test_daemon_clock.py",
    "faults/test_daemon_fleet.py",
    "faults/test_daemon_hold.py",
    "faults/test_daemon_labels.py",
    "faults/test_daemon_persons.py",
    "faults/test_daemon_scan_process.py",
    "faults/test_daemon_scanner.py",
    "faults/test_daemon_supervisor.py",
    "faults/test_daemon_system.py",
    "faults/test_daemon_trial.py",
    "faults/test_hostile_mail.py",
    "faults/test_imap_kill.py",
    "faults/test_learner_cli.py",
    "faults/test_persons_kill.py",
    "faults/test_store_append_file.py",
    "faults/test_store_grow.py",
    "faults/test_store_maintenance.py",
    "faults/test_time_machine.py",
    "mail/test_authentication_mtas.py",
    "mail/test_doctor.py",
    "mail/test_doctor_rig.py",
    "mail/test_dovecot_away.py",
    "mail/test_equality.py",
    "mail/test_exim_condition.py",
    "mail/test_imap_doc.py",
    "mail/test_milter_faults.py",
    "mail/test_milter_learning.py",
    "mail/test_milter_outcomes.py",
    "mail/test_milter_socket.py",
    "mail/test_persons.py",
    "mail/test_pipes.py",
    "mail/test_mail_programs.py",
    "mail/test_setup.py",
    "mail/test_setup_exim.py",
    "mail/test_setup_opensmtpd.py",
    "mail/test_setup_sendmail.py",
    "mail/test_soak.py",
    "mail/test_storm.py",
    "mail/test_suites.py",
    "mail/test_trial.py",
    "property/test_rewind.py",
    "test_getting_started.py",
    "test_install.py",
    "test_monitoring.py",
    "test_package.py",
    "test_scripts.py",
    "test_site.py",
    "unit/test_bulk_scoring.py",
    "unit/test_multiclass.py",
    "unit/test_plots.py",
    "unit/test_preview.py",
    "unit/test_shipped_prior.py",
    "unit/test_tune.py",
})  # fmt: skip
"""The files that take half of the time; `scripts/test` leaves them out, `scripts/test --slow` does
not. Each subject has faster tests in other files."""
FULL = frozenset({
    "browser/test_hidden_text.py::test_the_filter_sees_what_the_browser_draws",
    "browser/test_preview_attacks.py::test_attacks_have_effects_without_protection[together]",
    "browser/test_state_pages.py::test_every_screen_shows_status_and_settings[dark]",
    "browser/test_state_pages.py::test_every_screen_shows_status_and_settings[phone]",
    "browser/test_preview_attacks.py::test_a_preview_has_no_effect[headers-together]",
    "cli/test_switching.py::test_the_commands_of_each_start_work[DSPAM]",
    "cli/test_switching.py::test_the_commands_of_each_start_work[Nothing]",
    ("faults/test_daemon_hold.py::"
     "test_one_address_that_sends_no_message_holds_a_bounded_part[RSET\\r\\n]"),
    "faults/test_daemon_labels.py::test_all_labels_but_spam_are_mail[no spam]",
    *(f"faults/test_daemon_reload.py::test_the_clients_of_a_removed_listener_have_a_limit[{one}]"
      for one in ("scanner", "milter")),
    "faults/test_daemon_scanner.py::test_a_worker_that_is_killed_says_nothing[spamd]",
    "faults/test_daemon_supervisor.py::test_others_are_replaced_while_workers_go_on[delivery]",
    ("faults/test_daemon_threshold.py::"
     "test_switched_off_nothing_is_counted[site_threshold = false-5.20]"),
    "faults/test_hostile_mail.py::test_hostile_mail_is_read_in_bounded_time[run_cases]",
    "faults/test_hostile_mail.py::test_hostile_mail_is_shown_in_bounded_time[run_cases]",
    "faults/test_kill.py::test_killed_while_it_trains_a_second_run_finishes_the_work[20-9]",
    "mail/test_authentication.py::test_sixty_forged_results_and_a_true_one[after the queue]",
    "mail/test_dovecot_away.py::test_away_for_some_seconds[stopped]",
    "mail/test_imap.py::test_killed_again_and_again_it_handles_each_message_once[full]",
    ("property/test_correction.py::"
     "test_a_corrected_message_gets_the_label_of_the_correction[5]"),
    "unit/test_quarantine_release.py::test_a_kill_at_any_step_sends_nothing_twice[12]",
    "cli/test_cli_decisions.py::test_mail_of_another_kind_comes_after_all_other",
    "cli/test_cli_laboratory.py::test_tune_applies_what_is_confirmed",
    "cli/test_cli_rewind.py::test_relearn_with_another_constant",
    "cli/test_cli_rewind.py::test_rewind_before_the_first_training_leaves_an_empty_model",
    "cli/test_homes.py::test_a_second_home_is_named[stats]",
    ("cli/test_homes.py::"
    "test_the_emergency_switch_works_with_a_mistake_in_the_settings[a wrong value]"),
    ("faults/test_daemon_burst.py::"
    "test_a_burst_is_scanned_or_deferred_and_makes_no_known_crasher[1]"),
    "faults/test_daemon_burst.py::test_a_scan_that_hangs_blames_its_message_alone[defer]",
    "faults/test_daemon_burst.py::test_a_scan_that_hangs_blames_its_message_alone[head]",
    "faults/test_daemon_burst.py::test_the_bench_of_bursts_runs",
    "faults/test_daemon_reload.py::test_listeners_come_and_go[2]",
    "faults/test_daemon_scan_process.py::test_helpers_that_cannot_start_are_a_fault[asyncio]",
    ('faults/test_daemon_scanner.py::'
    'test_a_message_that_kills_two_scan_processes_gets_an_error[http-"action":"soft reject"]'),
    "faults/test_fleet_storm.py::test_a_storm_leaves_all_hosts_equal[postgres]",
    "faults/test_fleet_storm.py::test_a_storm_leaves_all_hosts_equal[valkey]",
    "faults/test_imap_kill.py::test_a_run_that_is_killed_anywhere_is_continued[copy]",
    "faults/test_imap_kill.py::test_a_run_that_is_killed_anywhere_is_continued[flag]",
    "mail/test_authentication_mtas.py::test_exim[after the queue]",
    "mail/test_authentication_mtas.py::test_exim[protocol of spamd]",
    "mail/test_doctor_rig.py::test_marked_mail_is_sent_each_way[milter]",
    *(f"mail/test_exim_condition.py::{name}[protocol of rspamd]"
      for name in ("test_a_temporary_error_of_the_daemon", "test_the_way_back",
                   "test_the_daemon_is_down")),
    "mail/test_milter_faults.py::test_a_worker_is_killed_in_a_scan[back-250]",
    "mail/test_milter_faults.py::test_connections_beyond_the_limit[mx-451]",
    *(f"mail/test_mail_programs.py::test_the_button_teaches_once[{program}]"
      for program in ("Thunderbird without MOVE junk", "Apple Mail not junk", "K-9 junk",
                      "K-9 not junk", "Outlook not junk")),
    "mail/test_setup.py::test_a_test_message_is_sent_and_moved",
    *(f"mail/test_setup_exim.py::test_settings_of_debian[{layout}]"
      for layout in ("split with an own ACL", "one template")),
    *(f"mail/test_setup.py::test_settings_of_dovecot[{name}-one file]"
      for name in ("sieve is on", "other plugins", "another sieve_before", "one owner", "dots",
                   "another junk folder")),
    "mail/test_soak.py::test_five_seconds",
    "mail/test_suites.py::test_an_observer_before_the_filter_of_the_suite_keeps_its_marks[mailcow]",
    "mail/test_suites.py::test_an_observer_before_the_filter_of_the_suite_keeps_its_marks[Mailu]",
    "test_getting_started.py::test_every_command_works_in_a_fresh_clone",
    "test_install.py::test_a_run_without_network_blocks_neither_the_next_nor_the_removal",
    *(f"test_scripts.py::test_it_runs_to_its_end[bench/{name}]"
      for name in ("fleet_capacity", "identity")),
    "test_site.py::test_a_broken_page_is_reported",
    "test_site.py::test_it_is_the_same_each_time",
    "unit/test_bulk_scoring.py::test_deep_folders_and_many_clues_cannot_stop_the_workers",
    "unit/test_multiclass.py::test_every_protocol_judges_labels[folds]",
    "unit/test_multiclass.py::test_every_protocol_judges_labels[holdout]",
    "unit/test_multiclass.py::test_thresholds_know_nothing_of_what_is_judged",
    ("unit/test_trainer.py::"
    "test_transactions_and_chunks_of_any_size_leave_the_same_model[192-64]"),
    "unit/test_tune.py::test_chance_is_no_gain[1]",
    "unit/test_tune.py::test_the_held_back_part_chooses_nothing",
    "unit/test_tune.py::test_bad_constants_are_found_and_the_gain_is_confirmed",
    *(f"browser/test_figure_pages.py::test_every_screen_shows_the_figures[{look}]"
      for look in ("dark", "phone")),
    *(f"browser/test_mail_pages.py::test_every_page_is_for_all_people_and_screens[{look}]"
      for look in ("light", "dark")),
    *(f"browser/test_tasks.py::test_a_task_takes_few_taps[{way}-{task}]"
      for way in ("desk", "keyboard")
      for task in ("release_one_of_fifty", "find_out_why_a_message_is_missing",
                   "take_back_what_a_user_taught_yesterday", "make_a_sender_wanted",
                   "see_whether_the_filter_got_better")),
    *(f"mail/test_authentication.py::test_sixty_forged_results_and_a_true_one[{place}]"
      for place in ("milter, rspamd", "milter in front of the verifiers",
                    "milter in front of rspamd", "after the queue, without a border",
                    "after the queue, rspamd", "lmtp", "lmtp, rspamd",
                    "before the queue and the verifiers", "milter without a border",
                    "rspamd without a border", "border after the verifiers")),
})  # fmt: skip
"""The longest tests with shorter siblings, as if they were marked `full`: a quarter of the time of
`scripts/test --slow`."""
pytest_plugins = ["support.fixtures"]


def pytest_addoption(parser):
    """Add the option for many random examples."""
    parser.addoption(
        "--examples",
        type=int,
        help="this many random examples for each property (a part of it, or several times as many, "
        "where an example takes very long or very little time)",
    )


def pytest_configure(config):
    """Cache compiled modules, and choose the number of examples of hypothesis.

    Modules go to the virtual environment if Python may not write them beside the source. The tests
    start about 2000 Python processes; to compile spamnb takes a third of their CPU time, and to
    compile the tests takes two thirds of the time until the first test.
    """
    if sys.prefix != sys.base_prefix and os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        sys.dont_write_bytecode = False
        sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(Path(sys.prefix, "pycache"))
    if unknown := [name for name in SLOW if not (TESTS / name).exists()]:
        raise pytest.UsageError(f"SLOW in {__file__} names no file: {unknown}")
    # No deadline, because a test must not fail on a busy machine. Every run has the same examples,
    # so no run fails by luck; with `--examples`, as in `scripts/test --all`, each run has others,
    # and a failure prints how to repeat it.
    examples = config.option.examples
    settings.register_profile(
        "spamnb",
        deadline=None,
        derandomize=examples is None,
        print_blob=examples is not None,
        max_examples=examples or 20,
    )
    settings.load_profile("spamnb")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect without the garbage collector, which then ignores the tests and their modules.

    The collector would find nothing; each worker needs 0.8 s less CPU time before its first test.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_itemcollected(item):
    """Mark the tests of the slow files; their names are checked in `pytest_configure`."""
    if item.path.relative_to(TESTS).as_posix() in SLOW:
        item.add_marker("slow")
    if item.nodeid.removeprefix("tests/") in FULL:
        item.add_marker("full")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Run the files that take long first: at the end one of them would keep one core busy."""
    if not any("::" in one for one in config.args):
        names = {item.nodeid.removeprefix("tests/") for item in items}
        files = {name.partition("::")[0] for name in names}
        if unknown := {one for one in FULL - names if one.partition("::")[0] in files}:
            raise pytest.UsageError(f"FULL in {__file__} names no test: {sorted(unknown)}")

    def rank(item):
        parts = item.path.relative_to(TESTS).parts
        return min((LONG.index(part) for part in parts if part in LONG), default=len(LONG))

    items.sort(key=rank)


@pytest.fixture(scope="session")
def shared_corpora() -> Path:
    """Find real mail beside the project, for tests that want it; they skip without it."""
    folder = PROJECT.parent / "shared" / "corpora"
    if not folder.is_dir():
        pytest.skip(f"no real mail at {folder}")
    return folder


@pytest.fixture
def no_system_file(monkeypatch, tmp_path):
    """Keep the machine's own settings out of a test."""
    monkeypatch.setattr("spamnb.settings.DEFAULT_FILE", tmp_path / "absent.toml")
