"""A real Thunderbird without a window, whose commands are those of its menus (Marionette)."""

import json
import os
import shutil
import socket
import subprocess
import time

import pytest

from support.postfix import free_ports
from support.waiting import LIMIT_S

needs_thunderbird = pytest.mark.skipif(
    not shutil.which("thunderbird"), reason="there is no program thunderbird"
)

_ACCOUNTS = """
const {MailServices} = ChromeUtils.importESModule("resource:///modules/MailServices.sys.mjs");
const server = MailServices.accounts.accounts.map(one => one.incomingServer)
    .find(one => one.type == "imap");
server.password = %(password)s;
const folder = name => server.rootFolder.subFolders.find(
    one => one.name.toLowerCase() == name.toLowerCase());
const until = async condition => {
    for (let tries = 0; tries < 600; tries++) {
        if (condition()) return;
        await new Promise(done => setTimeout(done, 100));
    }
    throw new Error("waited too long");
};
"""
_LIST = """
server.performExpand(null);
await until(() => folder("INBOX") && folder("Junk"));
"""
_CLICK = """
const wanted = folder(%(folder)s);
const pane = Services.wm.getMostRecentWindow("mail:3pane").gTabmail.currentAbout3Pane;
let row = -1;
const find = () => {
    row = -1;
    for (let at = 0; at < (pane.gDBView?.rowCount ?? 0); at++)
        if (pane.gDBView.getMsgHdrAt(at).subject == %(subject)s) row = at;
    return row >= 0;
};
pane.displayFolder(wanted.URI);
await until(() => { if (find()) return true; wanted.updateFolder(null); return false; });
pane.threadTree.selectedIndex = row;
await until(() => pane.commandController.isCommandEnabled(%(command)s));
pane.commandController.doCommand(%(command)s);
await until(() => !find());
"""


class Thunderbird:
    """Thunderbird with one account, as a user has it who lets it move junk to Junk."""

    def __init__(self, folder, imap, user, password):
        (self._port,) = free_ports(1)
        self._password = password
        server, account = "mail.server.server1", "mail.account.account1"
        settings = {
            "marionette.port": self._port,
            "mail.accountmanager.accounts": "account1",
            "mail.accountmanager.defaultaccount": "account1",
            f"{account}.server": "server1",
            f"{account}.identities": "id1",
            "mail.identity.id1.useremail": f"{user}@example.org",
            "mail.identity.id1.valid": True,
            f"{server}.type": "imap",
            f"{server}.hostname": "127.0.0.1",
            f"{server}.port": imap,
            f"{server}.userName": user,
            f"{server}.name": user,
            f"{server}.socketType": 0,
            f"{server}.authMethod": 3,
            f"{server}.login_at_startup": False,
            f"{server}.spamLevel": 0,
            "mail.spam.manualMark": True,
            "mail.spam.manualMarkMode": 0,
            "mail.provider.suppress_dialog_on_startup": True,
            "mailnews.start_page.enabled": False,
            "datareporting.policy.dataSubmissionEnabled": False,
            "app.update.enabled": False,
            "network.proxy.type": 0,
        }
        lines = (f"user_pref({json.dumps(k)}, {json.dumps(v)});\n" for k, v in settings.items())
        (folder / "user.js").write_text("".join(lines))
        self._log = folder / "log"
        options = ("--headless", "--marionette", "--remote-allow-system-access")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["thunderbird", *options, "--profile", folder],
                env=os.environ | {"HOME": str(folder)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._socket = self._connected()
        self._replies = self._socket.makefile("rb")
        self._read()  # its greeting
        self._ask("WebDriver:NewSession", capabilities={})
        self._ask("Marionette:SetContext", value="chrome")
        self._run(_LIST)

    def click(self, button, folder, subject):
        """Select the message with a subject in a folder, and click Junk or Not Junk."""
        command = {"junk": "cmd_markAsJunk", "not junk": "cmd_markAsNotJunk"}[button]
        self._run(_CLICK, folder=folder, subject=subject, command=command)

    def _connected(self):
        end = time.monotonic() + LIMIT_S
        while True:
            try:
                return socket.create_connection(("127.0.0.1", self._port), LIMIT_S)
            except OSError:
                assert self._process.poll() is None, self._log.read_text()
                assert time.monotonic() < end, self._log.read_text()
                time.sleep(0.1)

    def _run(self, code, **values):
        texts = {name: json.dumps(value) for name, value in values.items()}
        texts["password"] = json.dumps(self._password)
        script = (
            "const done = arguments[arguments.length - 1];"
            f"(async () => {{ {(_ACCOUNTS + code) % texts} }})().then(() => done(''), done);"
        )
        limit = LIMIT_S * 1000
        reply = self._ask(
            "WebDriver:ExecuteAsyncScript", script=script, args=[], scriptTimeout=limit
        )
        assert reply["value"] == "", reply

    def _ask(self, command, **values):
        data = json.dumps([0, 1, command, values]).encode()
        self._socket.sendall(b"%d:%s" % (len(data), data))
        _, _, fault, result = self._read()
        assert fault is None, fault
        return result

    def _read(self):
        size = b"".join(iter(lambda: self._replies.read(1), b":"))
        return json.loads(self._replies.read(int(size)))

    def close(self):
        """End it."""
        self._replies.close()
        self._socket.close()
        self._process.terminate()
        self._process.wait(LIMIT_S)
