"""One pass over a mailbox: learn what the user moved, judge what is new, move junk.

A pass first reads what arrived in the junk folder and in the user's other folders, then the inbox.
So it sees unfinished work of a killed process before it repeats any step. The states of a message,
and what a crash at each step leaves, are in docs/decisions/0046.

A message is recognised by the fields of its header that a move does not change; its body is read
only to judge or to learn it. No message is appended or created. A message is expunged only after
its copy was seen in the junk folder, and only by its UID.

Must not know how a connection is made or repeated. Failure: PeerError, StoreError; the next pass
continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from time import sleep
from typing import Final, NamedTuple

from spamnb.endpoints.imap.client import LATER, FolderState, ImapClient, ImapRefusedError
from spamnb.endpoints.imap.folders import WatchedFolders, decoded_name, watched
from spamnb.endpoints.imap.params import ImapParams
from spamnb.endpoints.imap.ports import Done, ImapPorts, ImapReport
from spamnb.endpoints.imap.state import Cursor, KnownMessage, MailboxState
from spamnb.errors import PeerError, StoreMissingError
from spamnb.service.feedback.types import Answer, Feedback
from spamnb.service.scanning.model_session import BATCH_MESSAGES, Found, ScanFault

HEADERS_AT_ONCE: Final = 100
MESSAGE_BYTES: Final = 1 << 20
"""Of a longer message only its first part is judged and learnt, as in the mail path."""
HEADER_BYTES: Final = 1 << 16
JUNK_AT_START: Final = 5000
"""newest messages in the junk folder that are noted at the first start: a message that the user
takes out of it must not be judged as new mail"""
MOVES_AT_ONCE: Final = 100
"""messages in other folders that are handled before the inbox is read again"""
IDENTITY: Final = "HEADER.FIELDS (MESSAGE-ID DATE FROM TO CC SUBJECT RECEIVED)"
JUNK_FLAG: Final = b"$Junk"
_COPY_S: Final = 3.0
"""between the two steps of a mail program that moves by copying"""
_FILED: Final = ("junk", "reject")
_FILING: Final = ("moving", "copied", "junk")
_MOST_TRIES: Final = 2
"""attempts to judge a message; in the second attempt it is judged alone"""


class Judged(NamedTuple):
    """A message of the inbox, and its verdict; None if it was judged before a crash."""

    uid: int
    identity: bytes
    found: Found | None = None


class SyncedAccount(NamedTuple):
    """An account, and what its reader needs."""

    name: str
    params: ImapParams
    ports: ImapPorts
    wait: Callable[[float], object] = sleep


class MailboxSync:
    """Reads one mailbox by one connection."""

    def __init__(self, account: SyncedAccount, client: ImapClient, state: MailboxState) -> None:
        self._name, self._params, self._ports, self._wait = account
        self._client = client
        self._state = state
        self._folders = self._find_folders()

    def _find_folders(self) -> WatchedFolders:
        params = self._params
        found = watched(self._client.folders(), params.inbox, params.junk)
        if found is None:
            name = f" {params.junk!r}" if params.junk else ""
            raise PeerError(
                f"{params.place}: there is no junk folder{name}",
                hint="create it, or set the name of the folder: junk",
            )
        return found

    # -- folders that are new here --------------------------------------------------------------

    def begin(self, *, existing: bool) -> None:
        """Note where each folder ends now; with `existing` the inbox is read from its start."""
        inbox, junk, others = self._folders
        for folder in (junk, inbox, *others):
            known, now = self._state.cursor(folder), self._client.status(folder)
            if known is None or known.uidvalidity != now.uidvalidity:
                self._begin_folder(folder, known, now)
        if existing:
            now = self._client.status(inbox)
            with self._state.changing():
                self._state.set_cursor(inbox, Cursor(now.uidvalidity, 1))

    def _begin_folder(self, folder: str, known: Cursor | None, now: FolderState) -> None:
        """Begin at the end of a folder, or at the newest messages of a junk folder that is new.

        Nothing is learnt from new UIDs (another UIDVALIDITY).
        """
        next_uid = now.uidnext
        is_first_junk = folder == self._folders.junk and known is None
        if is_first_junk or not next_uid:
            self._client.select(folder, readonly=True)
            uids = self._client.uids_from(1)
            next_uid = uids[-1] + 1 if uids else max(next_uid, 1)
            if is_first_junk and uids:
                next_uid = uids[-JUNK_AT_START:][0]
        with self._state.changing():
            if known is not None and folder == self._folders.inbox:
                self._state.settle()
            self._state.set_cursor(folder, Cursor(now.uidvalidity, next_uid))

    # -- a pass ---------------------------------------------------------------------------------

    def run(self, *, everywhere: bool = True) -> bool:
        """Handle what is new; return whether there is more to do at once.

        Without `everywhere`, only the junk folder and the inbox are read, so that new mail does not
        wait for a command for each other folder.
        """
        if everywhere:
            self._folders = self._find_folders()
        more = self._look_at(self._folders.junk)
        for folder in self._folders.others if everywhere else ():
            with suppress(ImapRefusedError):  # the user may have removed the folder
                more |= self._look_at(folder)
        self._open_inbox()
        self._read_inbox()
        return more

    def _look_at(self, folder: str) -> bool:
        """Learn what arrived in a folder; return whether a part of it is left for later."""
        now, cursor = self._client.status(folder), self._state.cursor(folder)
        if cursor is None or cursor.uidvalidity != now.uidvalidity:
            self._begin_folder(folder, cursor, now)
            return False
        if now.uidnext and now.uidnext <= cursor.next_uid:
            return False
        self._client.select(folder, readonly=True)
        uids = self._client.uids_from(cursor.next_uid)
        # After a crash all new messages are read: a message that was being filed may be among them.
        chunk = uids if self._state.has_pending() else uids[:MOVES_AT_ONCE]
        for part in _chunks(chunk, HEADERS_AT_ONCE):
            self._look_at_part(folder, part, now.uidvalidity)
        if now.uidnext and not uids:
            with self._state.changing():
                self._state.set_cursor(folder, Cursor(*now))
        return len(chunk) < len(uids)

    def _look_at_part(self, folder: str, uids: Sequence[int], uidvalidity: int) -> None:
        notes: dict[bytes, KnownMessage] = {}
        for uid, identity in self._identities(folder, uids):
            if note := self._arrived(folder, uid, identity):
                notes[identity] = note
        with self._state.changing():
            for identity, note in notes.items():
                self._state.note(identity, note)
            self._state.set_cursor(folder, Cursor(uidvalidity, uids[-1] + 1))

    def _open_inbox(self) -> None:
        inbox = self._folders.inbox
        if self._client.selected == inbox:
            return
        now, cursor = self._client.select(inbox), self._state.cursor(inbox)
        if cursor is None or cursor.uidvalidity != now.uidvalidity:
            self._begin_folder(inbox, cursor, now)
            self._client.select(inbox)

    def _identities(self, folder: str, uids: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """Yield UID and identity of the messages that are still there, in order."""
        fetched = self._bodies(folder, uids, IDENTITY)
        for uid in sorted(fetched):
            yield uid, blake2b(fetched[uid], digest_size=16).digest()

    # -- moves by the user ----------------------------------------------------------------------

    def _arrived(self, folder: str, uid: int, identity: bytes) -> KnownMessage | None:
        """Learn a message that the user moved; return another state to note, if any."""
        known = self._state.find(identity)
        if folder == self._folders.junk:
            if known is None or known.side in ("judging", "junk"):
                return KnownMessage("junk", uid)
            if known.side == "moving":
                return KnownMessage("copied", known.uid)
            if known.side == "ham":
                self._learn(folder, uid, identity, "spam")
        elif known is not None and known.side in ("copied", "junk"):
            self._learn(folder, uid, identity, "ham")
        elif known is not None and known.side == "moving":
            return KnownMessage("ham")
        return None

    def _learn(self, folder: str, uid: int, identity: bytes, label: str) -> None:
        """Learn a label that the user gave by a move, if the message is still there."""
        raw = self._bodies(folder, [uid]).get(uid)
        if not raw:
            return
        if self._ports.label_of(raw, self._params.user) != label:
            feedback = Feedback(label, raw, user=self._params.user, channel="imap")
            answer = self._ports.teach(feedback)
            done: Done = "refused" if answer.state == "refused" else "learnt"
            self._report(done, folder, uid, answer, answer.reason)
        self._note(
            [identity], KnownMessage("junk", uid) if label == "spam" else KnownMessage("ham")
        )

    def _bodies(self, folder: str, uids: Sequence[int], section: str = "") -> dict[int, bytes]:
        """Return messages, or a section of them; report a message that the server cannot read."""
        most = HEADER_BYTES if section else MESSAGE_BYTES
        try:
            return self._client.fetch(uids, section, most) if uids else {}
        except ImapRefusedError as error:
            if error.code in LATER:
                raise
            if len(uids) == 1:
                self._report("unscanned", folder, uids[0], text=str(error))
                return {}
        found: dict[int, bytes] = {}
        for uid in uids:
            found |= self._bodies(folder, [uid], section)
        return found

    # -- the inbox ------------------------------------------------------------------------------

    def _read_inbox(self) -> None:
        """Judge what is new in the inbox, and move junk."""
        cursor = self._state.cursor(self._folders.inbox)
        assert cursor is not None, "the inbox is open"
        uids = self._client.uids_from(cursor.next_uid)
        for part in _chunks(uids, HEADERS_AT_ONCE):
            identities = dict(self._identities(self._folders.inbox, part))
            for few in _chunks(part, BATCH_MESSAGES):
                self._handle({uid: identities[uid] for uid in few if uid in identities})
                with self._state.changing():
                    next_uid = Cursor(cursor.uidvalidity, few[-1] + 1)
                    self._state.set_cursor(self._folders.inbox, next_uid)
        if self._state.has_pending():
            with self._state.changing():
                self._state.settle()

    def _handle(self, identities: dict[int, bytes]) -> None:
        """Handle a few messages: learn, judge and move."""
        known = {uid: self._state.find(identity) for uid, identity in identities.items()}
        fresh = {uid: identities[uid] for uid, message in known.items() if message is None}
        filed = {uid: one for uid, one in known.items() if one is not None and one.side in _FILING}
        begun = {uid: one for uid, one in known.items() if one and one.side == "judging"}
        # A message that the user moved back has a higher UID than before.
        again = [uid for uid, one in filed.items() if one.side != "junk" and uid <= one.uid]
        back = {uid: one for uid, one in filed.items() if uid not in again}
        for uid in self._taken_out(back):
            self._learn(self._folders.inbox, uid, identities[uid], "ham")
        moving = [Judged(uid, identities[uid]) for uid in again]
        for uid, one in begun.items():
            moving += self._judge({uid: identities[uid]}, tries=one.uid + 1)
        self._act(moving + self._judge(fresh))

    def _taken_out(self, back: dict[int, KnownMessage]) -> list[int]:
        """Return the messages that the user moved out of the junk folder.

        If a message is still in the junk folder, the one in the inbox was delivered again. A mail
        program that moves by copying deletes the message in the junk folder a moment later.
        """
        places = {one.uid for one in back.values() if one.side == "junk" and one.uid}
        left = self._left_in_junk(places)
        if left:
            self._wait(_COPY_S)
            left = self._left_in_junk(left)
        return [uid for uid, one in back.items() if one.side != "junk" or one.uid not in left]

    def _left_in_junk(self, uids: set[int]) -> set[int]:
        if not uids:
            return set()
        self._client.select(self._folders.junk, readonly=True)
        left = self._client.uids_among(sorted(uids))
        self._client.select(self._folders.inbox)
        return left

    def _judge(self, identities: dict[int, bytes], tries: int = 1) -> list[Judged]:
        """Judge messages; return those to be moved, which are noted on disk as `moving`."""
        raws = self._bodies(self._folders.inbox, sorted(identities))
        if not raws:
            return []
        self._note([identities[uid] for uid in raws], KnownMessage("judging", tries))
        verdicts = self._verdicts(raws, tries)
        if any(isinstance(one, ScanFault) and one.reason == "model" for one in verdicts.values()):
            self._note([identities[uid] for uid in raws], KnownMessage("judging", tries - 1))
            raise StoreMissingError(
                "no model can be used", hint="see the log, or create a model with `spamnb train`"
            )
        judged = [Judged(uid, identities[uid], found) for uid, found in verdicts.items()]
        filed = [one for one in judged if _is_filed(one.found) and self._params.act == "move"]
        with self._state.changing():
            for one in judged:
                moving = KnownMessage("moving", one.uid)
                self._state.note(one.identity, moving if one in filed else KnownMessage("ham"))
        for one in judged:
            if one not in filed:
                self._act_mildly(one)
        return filed

    def _verdicts(self, raws: dict[int, bytes], tries: int) -> dict[int, Found]:
        """Return the verdicts; a message that killed this process twice gets none."""
        if tries > _MOST_TRIES:
            return dict.fromkeys(raws, ScanFault("known_crasher"))
        found = self._ports.judge(list(raws.values()), self._params.user)
        pairs = zip(raws.items(), found, strict=True)
        return {uid: self._second(one, raw) for (uid, raw), one in pairs}

    def _second(self, found: Found, raw: bytes) -> Found:
        """Judge a message again if it failed."""
        if isinstance(found, ScanFault) and found.reason == "fault":
            (found,) = self._ports.judge([raw], self._params.user)
        return found

    def _act_mildly(self, one: Judged) -> None:
        """Report a message that stays in the inbox; flag it if the settings say so."""
        done: Done = "judged"
        if isinstance(one.found, ScanFault):
            done = "unscanned"
        elif _is_filed(one.found) and self._params.act == "flag":
            done = "flagged" if self._flagged([one.uid]) else "judged"
        self._report_judged(done, one)

    def _flagged(self, uids: Sequence[int]) -> bool:
        try:
            self._client.add_flag(uids, JUNK_FLAG)
        except ImapRefusedError:
            return False
        return True

    # -- moving ---------------------------------------------------------------------------------

    def _act(self, filed: list[Judged]) -> None:
        """Move messages to the junk folder, by the best method of the server."""
        if not filed:
            return
        if self._client.has("MOVE"):
            self._move(filed)
        elif self._client.has("UIDPLUS"):
            self._copy_and_expunge(filed)
        else:
            # EXPUNGE without UIDs would also remove what the user has marked as deleted.
            flagged = self._flagged([one.uid for one in filed])
            self._settle(filed, "flagged" if flagged else "not moved", KnownMessage("ham"))

    def _move(self, filed: list[Judged]) -> None:
        uids = [one.uid for one in filed]
        try:
            self._client.move(uids, self._folders.junk)
        except ImapRefusedError as error:
            left = self._client.uids_among(uids)
            stayed = [one for one in filed if one.uid in left]
            self._settle(stayed, "not moved", KnownMessage("ham"), str(error))
            filed = [one for one in filed if one.uid not in left]
        self._settle(filed, "moved", KnownMessage("junk"))

    def _copy_and_expunge(self, filed: list[Judged]) -> None:
        """Copy, look for the copies, then remove the originals of those that were found."""
        inbox = self._folders.inbox
        copies = [one for one in filed if self._side(one) == "moving"]
        if copies:
            try:
                self._client.copy([one.uid for one in copies], self._folders.junk)
            except ImapRefusedError as error:
                self._settle(copies, "not moved", KnownMessage("ham"), str(error))
                filed = [one for one in filed if one not in copies]
            self._look_at(self._folders.junk)
            self._client.select(inbox)
        found = [one for one in filed if self._side(one) == "copied"]
        if found:
            uids = [one.uid for one in found]
            self._client.add_flag(uids, rb"\Deleted")
            self._client.expunge(uids)
            self._settle(found, "moved", KnownMessage("junk"))
        lost = [one for one in filed if one not in found]
        # The copy may appear later, and must then not count as a move by the user.
        self._settle(lost, "not moved", KnownMessage("junk"), "the copy was not found")

    def _side(self, one: Judged) -> str:
        known = self._state.find(one.identity)
        return known.side if known else ""

    def _settle(
        self, filed: Sequence[Judged], done: Done, message: KnownMessage, text: str = ""
    ) -> None:
        """Note on disk what became of messages, and report it."""
        if not filed:
            return
        self._note([one.identity for one in filed], message)
        for one in filed:
            self._report_judged(done, one, text)

    def _note(self, identities: Sequence[bytes], message: KnownMessage) -> None:
        with self._state.changing():
            self._state.note_all(identities, message)

    # -- reports --------------------------------------------------------------------------------

    def _report_judged(self, done: Done, one: Judged, text: str = "") -> None:
        verdict = one.found
        if verdict is None or isinstance(verdict, ScanFault):
            reason = text or (verdict.reason if verdict else "")
            self._report(done, self._folders.inbox, one.uid, text=reason)
            return
        report = ImapReport(
            self._name,
            done,
            decoded_name(self._folders.inbox),
            one.uid,
            verdict.decision,
            verdict.probability,
            text=text,
        )
        self._ports.report(report)

    def _report(
        self, done: Done, folder: str, uid: int, answer: Answer | None = None, text: str = ""
    ) -> None:
        name = decoded_name(folder)
        self._ports.report(ImapReport(self._name, done, name, uid, answer=answer, text=text))


def _is_filed(found: Found | None) -> bool:
    return found is not None and not isinstance(found, ScanFault) and found.decision in _FILED


def _chunks(uids: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for start in range(0, len(uids), size):
        yield uids[start : start + size]
