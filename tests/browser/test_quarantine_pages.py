"""The pages of the quarantine and of the review, in a real browser."""

import json
from itertools import count
from types import SimpleNamespace

import pytest
from support.browser import PHONE, pages, window
from support.console import KEEP_ALL, Api, token, trained_home
from support.daemon import send
from support.sink import Sink

ALICE, SALES, BOB = "alice@example.org", "sales@example.org", "bob@example.org"
TRICKS = (
    "<p>visible</p><p style='display:none'>secret</p><script>document.title='x'</script>"
    "<img src=https://beacon.test/i><a href='https://bank.test@evil.test/'>bank.test</a>"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder, numbers = tmp_path_factory.mktemp("pages"), count()
    trained_home(folder)
    sink = Sink()
    with pages(
        folder, delivery="", listener=f'upstream = "{sink.address}"', more=KEEP_ALL
    ) as found:
        daemon, url = found
        admin = token(folder / "home", "admin", "quarantine", "admin")
        bob = token(folder / "home", "bob", "teach", user=BOB)
        bobs = token(folder / "home", "bobs", "quarantine", user=BOB)
        alices = token(folder / "home", "alices", "quarantine", user=ALICE)

        def api(text=admin):
            return Api(url.removeprefix("http://"), text)

        def keep(*to, text="hello"):
            """Send a message into the quarantine; its facts."""
            send(daemon.port(), subject=f"number {next(numbers)}", to=[*to], text=text)
            return api().get("/quarantine", limit=1).body["messages"][0]

        yield SimpleNamespace(
            url=url, home=folder / "home", daemon=daemon, api=api, keep=keep, bob=bob,
            bobs=bobs, alices=alices,
        )  # fmt: skip
    sink.close()


def released(opened, name, *, only=(), act="Release"):
    """Release a message by its page; the texts of the notices."""
    opened.go(f"/quarantine/{name}")
    if only:
        for box in opened.page.locator("input[name=only]").all():
            box.set_checked(box.get_attribute("value") in only)
    opened.page.get_by_role("button", name=act, exact=True).click()
    opened.page.locator("#notices").wait_for()
    return opened.texts("#notices .notice p")


@pytest.mark.parametrize("script", [True, False], ids=["script", "no script"])
def test_a_message_is_looked_at_and_released_to_some(site, browser, script):
    """An administrator chooses recipients; the others still wait; none chosen is an error."""
    kept = site.keep(ALICE, BOB)
    with window(browser, site.url, script=script) as opened:
        page = opened.log_in("root", "/quarantine")
        page.get_by_role("link", name=kept["subject"], exact=True).click()
        page.get_by_role("heading", name=kept["subject"]).wait_for()
        opened.expected.append("400")
        assert released(opened, kept["id"], only=["none"]) == ["No recipient is chosen."]
        assert released(opened, kept["id"], only=[BOB]) == [f"Released to {BOB}."]
        assert site.api().get(f"/quarantine/{kept['id']}").body["waiting"] == [ALICE]
        said = released(opened, kept["id"], act="Not junk: release and learn")
        assert said[0] == f"Released to {ALICE}."
        assert said[1].startswith("Taught as ham.")
        page.get_by_role("button", name="Undo").click()
        page.get_by_text("is undone").wait_for()
        assert site.api().get(f"/quarantine/{kept['id']}").status == 404
    site.daemon.wait_for("console", operation="quarantine release", caller="root", status=200)


def test_a_message_is_deleted(site, browser):
    """A deleted message is on no page; one press restores it, and it can be deleted again."""
    kept = site.keep(ALICE)
    path = f"/quarantine/{kept['id']}"
    with window(browser, site.url, script=False, size=PHONE) as opened:
        page = opened.log_in("root", path)
        assert opened.fits()
        for _ in range(2):
            page.get_by_role("button", name="Delete").click()
            assert opened.texts("#notices .notice p") == ["The message is deleted."]
            assert site.api().get(path).status == 404
            page.get_by_role("button", name="Undo").click()
            assert opened.texts("#notices .notice p") == ["The message is in quarantine again."]
            assert site.api().get(path).body == kept
            opened.go(path)
        page.get_by_role("button", name="Delete").click()
        opened.expected.append("404")
        assert opened.go(path).status == 404


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_preview_shows_hostile_mail_safely(site, browser, dark):
    """The frame shows the text, marks what is hidden and where links lead, and loads nothing."""
    kept = site.keep(ALICE, text="\r\n")
    html = f"Content-Type: text/html\r\nSubject: {kept['subject']} again\r\n\r\n{TRICKS}\r\n"
    send_raw(site, ALICE, html)
    kept = site.api().get("/quarantine", limit=1).body["messages"][0]
    with window(browser, site.url, dark=dark) as opened:
        page = opened.log_in("root", f"/quarantine/{kept['id']}")
        frame = page.frame_locator("iframe.preview")
        frame.get_by_text("visible", exact=True).wait_for()
        assert frame.locator(".hidden pre").inner_text().strip() == "secret"
        assert frame.locator(".target").inner_text() == "[evil.test]"
        assert opened.fits()
    site.daemon.wait_for("console", operation="kept_view", caller="root", id=kept["id"])


@pytest.mark.parametrize("script", [True, False], ids=["script", "no script"])
def test_a_failed_preview_says_why_and_is_loaded_again(site, browser, script):
    """The frame has the sentence; the link below it shows the message when it can be read."""
    kept = site.keep(ALICE, text="still here")
    (raw,) = (site.home / "quarantine").rglob(f"{kept['id']}*.eml")
    away = raw.rename(raw.with_suffix(".away"))
    with window(browser, site.url, script=script) as opened:
        opened.expected.append("503")
        page = opened.log_in("root", f"/quarantine/{kept['id']}")
        frame = page.frame_locator("iframe.preview")
        frame.get_by_text("The preview cannot be shown").wait_for()
        away.rename(raw)
        page.get_by_role("link", name="Load the preview again").click()
        frame.get_by_text("still here").wait_for()
        assert opened.fits()


def send_raw(site, to, message):
    import smtplib

    with smtplib.SMTP("127.0.0.1", site.daemon.port()) as client:
        client.sendmail("eve@example.com", [to], message)


def test_a_user_has_the_own_quarantine(site, browser):
    """A user releases to the own addresses alone, and does not learn of other recipients."""
    kept, foreign = site.keep(ALICE, SALES, BOB), site.keep(BOB)
    with window(browser, site.url) as opened:
        page = opened.log_in("alice", "/quarantine")
        page.get_by_role("link", name=kept["subject"], exact=True).click()
        page.get_by_role("heading", name=kept["subject"]).wait_for()
        boxes = page.locator("input[name=only]").all()
        assert [one.get_attribute("value") for one in boxes] == [ALICE, SALES]
        assert "bob@" not in page.content()
        assert released(opened, kept["id"], only=[SALES]) == [f"Released to {SALES}."]
        assert released(opened, kept["id"]) == [f"Released to {ALICE}."]
        opened.expected.append("404")
        for name in (kept["id"], foreign["id"]):
            for rest in ("", "/view", "/raw"):
                assert opened.go(f"/quarantine/{name}{rest}").status == 404
        assert opened.go("/review").status == 404
    assert site.api().get(f"/quarantine/{kept['id']}").body["waiting"] == [BOB]
    assert site.api().get(f"/quarantine/{foreign['id']}").body == foreign


def test_forms_of_others_change_nothing(site, browser):
    """Without the form's token, with that of another page, or as an auditor nothing is changed."""
    kept = site.keep(ALICE, BOB)
    before = site.api().get(f"/quarantine/{kept['id']}").body
    asked = {"id": kept["id"], "only": ALICE}
    for login in ("root", "audit", "alice"):
        with window(browser, site.url) as opened:
            page = opened.log_in(login, "/quarantine")
            other = page.locator("form.who input[name=token]").get_attribute("value")
            acts = ("release", "release_teach", "delete")
            for do in acts:
                for value, origin in (("", "same-origin"), (other, "same-origin"), (other, "none")):
                    form = asked | {"do": do, "token": value}
                    headers = {"Sec-Fetch-Site": origin}
                    reply = page.context.request.post(
                        f"{site.url}/quarantine", form=form, headers=headers, max_retries=3
                    )
                    assert reply.status == 403
            for do in acts:
                assert opened.go(f"/quarantine?do={do}&id={kept['id']}").status == 400
            opened.expected.append("400")
            opened.go(f"/quarantine/{kept['id']}")
            assert (page.get_by_role("button", name="Release", exact=True).count() == 0) == (
                login == "audit"
            )
    assert site.api().get(f"/quarantine/{kept['id']}").body == before


def test_corrections_are_accepted_and_refused(site, browser):
    """An administrator sees what a user said and the message, and decides one or all of a user."""
    for number in range(4):
        raw = f"Subject: offer {number}\r\n\r\nbuy {number} of these\r\n".encode()
        assert site.api(site.bob).ask("POST", "/teach", raw, label="spam").status == 202
    with window(browser, site.url) as opened:
        page = opened.log_in("root", "/review")
        assert page.locator("#menu .count").text_content() == "4 waiting"
        page.keyboard.press("j")
        page.keyboard.press("o")
        page.frame_locator("iframe.preview").get_by_text("buy").wait_for()
        page.keyboard.press("a")
        page.get_by_text("Taught as spam.").wait_for()
        page.get_by_role("button", name="Refuse", exact=True).first.click()
        page.get_by_text("refused").wait_for()
        page.get_by_role("button", name="Accept all 2").click()
        page.get_by_text("Nothing waits").wait_for()
        assert page.locator("#menu .count").count() == 0
        assert opened.texts("#notices .notice p") == ["2 corrections are accepted."]
        assert opened.fits()
    assert site.api().get("/review").body["entries"] == []


def test_not_junk_on_the_page_of_a_kept_message_says_where_it_is(site, browser):
    """Teaching alone does not release: the page says so, and has the release."""
    kept = site.keep(ALICE, text="minutes of the meeting")
    with window(browser, site.url) as opened:
        page = opened.log_in("alice", f"/message/{kept['facts']['signature']}")
        page.get_by_role("heading", name="In quarantine").wait_for()
        page.frame_locator("iframe.preview").locator("main, body").first.wait_for()
        page.get_by_role("button", name="Not junk", exact=True).click()
        notices = page.locator("#notices")
        notices.get_by_text("The message is still in quarantine.").wait_for()
        notices.get_by_role("link", name="Go on").click()
        page.get_by_role("button", name="Not junk: release and learn").click()
        page.get_by_text(f"Released to {ALICE}.").wait_for()
        opened.go(f"/message/{kept['facts']['signature']}")
        assert not page.get_by_role("heading", name="In quarantine").is_visible()


@pytest.mark.parametrize("script", [True, False], ids=["script", "no script"])
def test_chosen_messages_are_released_from_the_list_of_a_phone(site, browser, script):
    """Two of three are released and taught with one press, and undone with one; one is deleted."""
    kept = [site.keep(BOB) for _ in range(3)]
    with window(browser, site.url, size=PHONE, script=script) as opened:
        page = opened.log_in("bob", "/quarantine")
        assert opened.fits()
        for one in kept[:2]:
            page.get_by_label(f"Choose “{one['subject']}”", exact=True).check()
        page.get_by_role("button", name="Not junk", exact=True).click()
        page.get_by_text("2 messages are released and taught as ham.").wait_for()
        page.get_by_role("button", name="Undo").click()
        page.get_by_text("2 changes are undone.").wait_for()
        page.get_by_label(f"Choose “{kept[2]['subject']}”", exact=True).check()
        page.get_by_role("button", name="Delete").click()
        page.get_by_text("The message is deleted.").wait_for()
    waiting = {one["id"] for one in site.api().get("/quarantine", limit=200).body["messages"]}
    assert waiting.isdisjoint(one["id"] for one in kept)


def test_a_card_of_the_quarantine_is_short_and_opens_anywhere(site, browser):
    """At 390 pixels a message takes at most 80 pixels; a tap beside the subject opens it."""
    kept = [site.keep(BOB) for _ in range(2)]
    with window(browser, site.url, size={"width": 390, "height": 844}) as opened:
        page = opened.log_in("bob", "/quarantine")
        card = page.locator("tr", has=page.get_by_role("link", name=kept[1]["subject"]))
        box = card.bounding_box()
        assert box["height"] <= 80
        assert page.get_by_text("until").first.is_visible()
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] - 8)
        page.get_by_role("heading", name=kept[1]["subject"]).wait_for()
        opened.go(f"/quarantine?q={kept[0]['subject'].replace(' ', '+')}")
        assert opened.texts("a.open") == [kept[0]["subject"]]
        opened.accessible()


def test_the_header_names_the_sender_and_the_envelope_is_marked(site, browser):
    """The list shows From; an envelope of another domain is named, and found by the search."""
    message = "From: Support Bank <help@bank.example>\r\nSubject: your account\r\n\r\ntext\r\n"
    send_raw(site, ALICE, message)
    kept = site.api().get("/quarantine", limit=1).body["messages"][0]
    with window(browser, site.url) as opened:
        page = opened.log_in("root", "/quarantine?q=bank.example")
        assert opened.texts(".people")[0].startswith(
            "Support Bank <help@bank.example> sent through eve@example.com"
        )
        opened.go(f"/quarantine/{kept['id']}")
        assert page.url.endswith(f"/message/{kept['facts']['signature']}")
        assert "Support Bank <help@bank.example>" in page.inner_text(".lead")


@pytest.mark.parametrize("script", [True, False], ids=["script", "no script"])
def test_several_deleted_messages_are_restored_by_one_press(site, browser, script):
    """Two addresses of a user each had one; the third message, of another user, stays deleted."""
    kept = [site.keep(ALICE), site.keep(SALES)]
    foreign = site.keep(BOB)
    assert site.api(site.bobs).ask("DELETE", f"/quarantine/{foreign['id']}").status == 200
    with window(browser, site.url, size=PHONE, script=script) as opened:
        page = opened.log_in("alice", "/quarantine")
        before = opened.texts("a.open")
        for one in kept:
            page.get_by_label(f"Choose “{one['subject']}”", exact=True).check()
        page.get_by_role("button", name="Delete").click()
        page.get_by_text("2 messages are deleted.").wait_for()
        assert len(opened.texts("a.open")) == len(before) - 2
        page.get_by_role("button", name="Undo").click()
        page.get_by_text("2 messages are in quarantine again.").wait_for()
        assert opened.texts("a.open") == before
    for name in (foreign["id"], "20260101T000000000000-01234567"):
        refused = site.api(site.alices).ask("POST", f"/quarantine/{name}/restore")
        assert (refused.status, refused.title.replace(name, "ID")) == (
            404,
            "there is no deleted message ID",
        )


def test_a_user_does_not_restore_what_the_administrator_deleted(site):
    """Deleted by the administrator, a message comes back only by the administrator."""
    kept = site.keep(ALICE, BOB)
    path = f"/quarantine/{kept['id']}"
    admin, alice = site.api(), site.api(site.alices)
    assert alice.ask("DELETE", path).status == 200
    assert admin.ask("DELETE", path).status == 200
    assert alice.post(f"{path}/restore", {}).status == 404
    assert admin.post(f"{path}/restore", {}).status == 200
    assert admin.get(path).body["waiting"] == [BOB]
    assert alice.post(f"{path}/restore", {}).status == 200
    assert admin.get(path).body == kept
    assert admin.post(f"{path}/restore", {}).status == 404


def test_a_message_without_a_verdict_has_the_same_page(site, browser):
    """A kept message whose verdict the history does not have: sender, acts and preview."""
    kept = site.keep(ALICE, BOB)
    sidecar = site.home / "quarantine" / f"{kept['id']}.json"
    facts = json.loads(sidecar.read_text())
    facts["facts"].pop("signature")
    sidecar.write_text(json.dumps(facts))
    with window(browser, site.url) as opened:
        page = opened.log_in("root", f"/quarantine/{kept['id']}")
        page.get_by_role("heading", name=kept["subject"]).wait_for()
        page.frame_locator("iframe.preview").get_by_text("hello").wait_for()
        opened.accessible()
        assert released(opened, kept["id"]) == [f"Released to {ALICE}, {BOB}."]


def test_on_a_wide_screen_the_preview_is_beside_the_list(site, browser):
    """Keys and clicks show a message; the second opens it; a key acts on it, and takes it back."""
    kept = [site.keep(BOB) for _ in range(2)]
    size = {"width": 1920, "height": 1080}
    with window(browser, site.url, size=size) as opened:
        page = opened.log_in("bob", f"/quarantine?q={kept[0]['subject'].replace(' ', '+')}")
        opened.go("/quarantine")
        page.get_by_text("Choose a message to see it here").wait_for()
        opened.accessible()
        page.keyboard.press("j")
        frame = page.frame_locator("#pane iframe")
        frame.get_by_text(kept[1]["subject"]).wait_for()
        page.get_by_role("link", name=kept[0]["subject"]).click()
        frame.get_by_text(kept[0]["subject"]).wait_for()
        assert opened.fits()
        page.keyboard.press("d")
        page.get_by_text("The message is deleted.").wait_for()
        page.keyboard.press("u")
        page.get_by_text("The message is in quarantine again.").wait_for()
        for _ in range(2):
            page.get_by_role("link", name=kept[0]["subject"]).click()
        page.get_by_role("heading", name=kept[0]["subject"]).wait_for()


def test_the_menu_of_a_user_counts_the_messages_in_quarantine(site, browser):
    """The count is that of the list, also after an act of the user."""
    kept = site.keep(BOB)
    with window(browser, site.url) as opened:
        page = opened.log_in("bob", "/quarantine")
        counted = page.locator("#menu .count")
        rows = len(opened.texts("a.open"))
        assert counted.text_content() == f"{rows} waiting"
        opened.go(f"/quarantine/{kept['id']}")
        page.get_by_role("button", name="Delete").click()
        page.get_by_text("The message is deleted.").wait_for()
        assert (counted.text_content() if rows > 1 else counted.count()) == (
            f"{rows - 1} waiting" if rows > 1 else 0
        )
