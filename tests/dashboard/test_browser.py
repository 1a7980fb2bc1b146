"""The dashboard as people see it: a real cluster with fake GPUs, and Chromium."""

import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ebbtide_web.pages.job import VERBS

from tests.dashboard.looking import NARROW, SIZES, WAIT_MS, WIDE, controls, out_of_reach, serious, watched
from tests.drawing import some_of
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.conftest import a_home

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

JOB = Path(__file__).with_name("steps.py")
FOCUSED = """() => {
    const one = document.activeElement, roles = { A: "link", BUTTON: "button" };
    const name = one.getAttribute("aria-label") || one.textContent;
    return `${roles[one.tagName] || one.tagName}: ${name.trim()}`;
}"""
NOTE_WHEN_CANCELLED = """(name) => {
    const root = document.documentElement, rows = [...document.querySelectorAll("tbody tr")];
    const row = rows.find((one) => one.textContent.includes(name));
    const over = () => !row.isConnected || row.textContent.includes("Cancelled");
    const look = () => { if (over()) root.dataset.at ||= Date.now(); };
    new MutationObserver(look).observe(document.body, { childList: true, subtree: true, characterData: true });
}"""
FILTERS_ARE_FILLED = "() => document.getElementById('f-sort')?.options.length !== 0"
"""Before that, those among which there is nothing to choose are not hidden yet."""
BOXES = """() => Object.fromEntries([...document.querySelectorAll("#actions button")].map((one) => {
    const box = one.getBoundingClientRect();
    return [one.dataset.verb, [box.left + scrollX, box.top + scrollY, box.width, box.height]];
}))"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster of one node with two fake GPUs, and a dashboard."""
    with a_home() as cluster:
        cluster.up("2xA100-40GB", "--dashboard")
        yield cluster


@pytest.fixture
def page(cluster, browser):
    """A page that is logged in; whatever the browser complains about is a failure."""
    context = browser.new_context(reduced_motion="reduce")
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    page.complaints = watched(page)
    log_in(cluster, page)
    yield page
    assert page.complaints == []
    context.close()
    cluster.cancel_all()


def log_in(cluster, page) -> None:
    page.goto(cluster.facts("dashboard", "--link")["url"])
    page.wait_for_selector("#tiles .tile")


def at(cluster, path: str) -> str:
    record = json.loads((cluster.home / "dashboard.json").read_text())
    return f"{record['url']}{path}"


def submit(cluster, *options: str, steps: int = 100_000, pace: float = 0.05, name: str = "train") -> str:
    command = ("--", sys.executable, str(JOB), str(steps), str(pace))
    return cluster.submit("--name", name, *options, *command)


def press_until(page, role: str, name: str) -> None:
    """Press Tab until the focus is on what has this role and name."""
    wanted = f"{role}: {name}"
    seen = []
    for _ in range(80):
        page.keyboard.press("Tab")
        found = page.evaluate(FOCUSED)
        if re.fullmatch(wanted, found):
            return
        seen.append(found)
    raise AssertionError(f"Tab does not lead to {wanted}: {seen}")


def test_with_the_keyboard_alone_one_sees_why_a_job_waits_and_suspends_and_resumes_another(cluster, page):
    first = submit(cluster, "--gpus", "2", "--time", "1h", name="first")
    cluster.wait_for_step(first, 5)
    waiting = submit(cluster, "--gpus", "2", name="second")
    press_until(page, "link", "Queue")
    page.keyboard.press("Enter")
    page.wait_for_selector(f"text={waiting} second")
    press_until(page, "link", f"{waiting} second")
    page.keyboard.press("Enter")
    page.wait_for_selector("#why .big")
    why = page.inner_text("#why")
    assert "waiting for 2 GPUs" in why
    assert re.search(r"May start\s+in about .*, (by progress|at the latest)", why)
    assert f"job {first}" in why
    press_until(page, "link", f"job {first}")
    page.keyboard.press("Enter")
    page.wait_for_selector(".state .glyph >> xpath=.. >> text=Running")
    page.wait_for_selector("[role=log] :text('step')")
    press_until(page, "button", "Suspend")
    began = time.monotonic()
    page.keyboard.press("Enter")
    page.wait_for_selector(".state-line .state >> text=Suspended")
    assert time.monotonic() - began < 15
    assert cluster.show(first)["state"] == "SUSPENDED"
    assert page.evaluate(FOCUSED) == "button: Suspend", "the focus stays where it was"
    page.keyboard.press("Enter")
    page.wait_for_selector("#said :text('It is suspended already.')")
    cluster.ebb("cancel", "--now", waiting)
    press_until(page, "button", "Resume")
    page.keyboard.press("Enter")
    page.wait_for_selector(".state-line .state >> text=Running")
    table = page.get_by_role("table", name="Parts of this suspension")
    table.wait_for()
    parts = set(table.get_by_role("columnheader").all_inner_texts())
    assert {"save", "exit", "free the GPU", "queue", "start"} <= parts
    lines = page.get_by_role("log")
    before = lines.locator(".ln").count()
    wait_for("the log goes on", lambda: lines.locator(".ln").count() > before)
    assert "attempt 2" in lines.inner_text()


def test_what_is_typed_into_the_form_for_looking_ahead_stays_when_another_explanation_comes(cluster, page):
    cluster.wait_for_step(submit(cluster, "--gpus", "2", name="first"), 2)
    waiting = submit(cluster, "--gpus", "2", name="second")
    page.goto(at(cluster, f"/jobs/{waiting}"))
    priority = page.locator("#why").get_by_label("priority")
    priority.fill("7")
    page.evaluate("document.querySelector('#why .big').isOld = true")
    cluster.ebb("hold", waiting)
    page.wait_for_function("() => !document.querySelector('#why .big').isOld")
    assert priority.input_value() == "7"
    assert priority.evaluate("(one) => one === document.activeElement")
    page.keyboard.press("Enter")
    page.locator("#why [role=status]:has-text('It would start')").wait_for()


def test_what_cannot_be_undone_asks_first_and_says_what_follows(cluster, page):
    job = submit(cluster, "--gpus", "1")
    cluster.wait_for_step(job, 2)
    page.goto(at(cluster, f"/jobs/{job}"))
    page.get_by_role("button", name="Cancel").click()
    dialog = page.get_by_role("dialog")
    assert "this cannot be undone" in dialog.inner_text()
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    assert cluster.show(job)["state"] == "RUNNING"
    page.get_by_role("button", name="Cancel").click()
    dialog.get_by_role("button", name="Cancel").click()
    page.wait_for_selector(".state-line .state >> text=Cancelled")
    assert cluster.show(job)["state"] == "CANCELLED"
    page.get_by_role("button", name="Requeue").click()
    dialog.get_by_role("button", name="Requeue").click()
    page.wait_for_url(re.compile(rf"/jobs/(?!{job}\b)\d+$"))


def test_a_job_is_resized_drilled_held_and_released(cluster, page):
    job = submit(cluster, "--gpus", "1")
    cluster.wait_for_step(job, 2)
    page.goto(at(cluster, f"/jobs/{job}"))
    page.get_by_role("button", name="Drill").click()
    page.wait_for_selector("text=Suspension 1")
    page.wait_for_selector(".parts-table >> text=first step")  # until it is back, its buttons change with its state
    page.wait_for_selector(".state-line .state >> text=Running")
    page.get_by_role("button", name="Resize").click()
    page.get_by_role("dialog").get_by_label("GPUs").fill("many")
    page.get_by_role("dialog").get_by_role("button", name="Resize").click()
    assert "no number" in page.get_by_role("dialog").inner_text()
    page.get_by_role("dialog").get_by_label("GPUs").fill("2")
    page.get_by_role("dialog").get_by_role("button", name="Resize").click()
    wait_for("it has two GPUs", lambda: cluster.show(job)["gpus"]["allocated"] == 2)
    other = submit(cluster, "--gpus", "1", name="other")
    page.goto(at(cluster, f"/jobs/{other}"))
    page.get_by_role("button", name="Hold").click()
    page.get_by_role("button", name="Release").click()
    page.wait_for_selector("button[data-verb=hold][aria-disabled=false]")
    assert cluster.show(other)["held_by"] is None


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_buttons_keep_their_places_while_the_state_of_a_job_changes_and_say_why_they_are_off(
    cluster, page, width, height
):
    page.set_viewport_size({"width": width, "height": height})
    job = submit(cluster, "--gpus", "1", name="moves-nothing")
    cluster.wait_for_step(job, 2)
    page.goto(at(cluster, f"/jobs/{job}"))
    page.wait_for_selector(".state-line .state >> text=Running")
    before = page.evaluate(BOXES)
    assert set(before) == set(VERBS)
    page.get_by_role("button", name="Suspend").click()
    page.wait_for_selector(".state-line .state >> text=Suspended")
    assert page.evaluate(BOXES) == before
    x, y, wide, high = before["suspend"]
    page.evaluate("scrollTo(0, 0)")
    page.mouse.click(x + wide / 2, y + high / 2)
    page.wait_for_selector("#said :text('It is suspended already.')")
    assert cluster.show(job)["state"] == "SUSPENDED", "whoever presses twice does not resume it"
    assert page.get_by_role("button", name="Suspend").get_attribute("title") == "It is suspended already."
    page.get_by_role("button", name="Resume").click()
    page.wait_for_selector(".state-line .state >> text=Running")
    assert page.evaluate(BOXES) == before
    cluster.ebb("cancel", "--now", job)
    page.wait_for_selector(".state-line .state >> text=Cancelled")
    assert page.evaluate(BOXES) == before
    off = {verb for verb in VERBS if page.locator(f"[data-verb={verb}][aria-disabled=true][title]").count()}
    assert off == set(VERBS) - {"requeue"}


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_choosing_a_row_of_the_queue_moves_none(cluster, page, width, height):
    page.set_viewport_size({"width": width, "height": height})
    job = submit(cluster, "--gpus", "1", name="stays-there")
    page.goto(at(cluster, "/queue"))
    row = page.locator("tbody tr").filter(has_text="stays-there")
    row.wait_for()
    suspend = page.get_by_role("group", name="Change the chosen jobs").get_by_role("button", name="Suspend")
    cluster.wait_for_step(job, 2)
    before = row.locator("input").bounding_box(), suspend.bounding_box()
    assert suspend.is_disabled()
    row.locator("input").check()
    page.wait_for_selector("#bulk :text('1 row chosen')")
    assert (row.locator("input").bounding_box(), suspend.bounding_box()) == before
    suspend.click()
    cluster.wait_for_state(job, "SUSPENDED")


def test_several_jobs_are_held_and_cancelled_at_once(cluster, page):
    jobs = [submit(cluster, "--gpus", "2", name=f"many-{n}") for n in range(3)]
    page.goto(at(cluster, "/queue?q=many"))
    page.wait_for_selector(f"text={jobs[2]} many-2")
    page.get_by_label("Choose all rows").check()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    page.wait_for_selector("text=No job is like that.")
    states = {cluster.wait_for_state(job, "CANCELLED")["state"] for job in jobs}
    assert states == {"CANCELLED"}
    page.get_by_role("link", name=re.compile("Finished")).click()
    page.wait_for_selector(f"text={jobs[0]} many-0")
    assert "show=finished" in page.url
    assert "q=many" in page.url


def test_what_a_filter_hides_of_an_array_is_told_before_all_of_it_is_cancelled(cluster, page):
    array = submit(cluster, "--gpus", "1", "--array", "0-2", name="sweep")
    for task in (0, 1):
        cluster.wait_for_step(f"{array}.{task}", 2)
    page.goto(at(cluster, f"/queue?q={array}.2"))
    row = page.locator("tbody tr").filter(has_text="sweep")
    row.get_by_text("array, 1 of 3 tasks").wait_for()
    row.locator("input").check()
    bulk, dialog = page.get_by_role("group", name="Change the chosen jobs"), page.get_by_role("dialog")
    for verb in ("Suspend", "Cancel"):
        bulk.get_by_role("button", name=verb).click()
        assert dialog.get_by_role("heading").inner_text() == f"{verb} 1 array?"
        assert f"Array {array}: all 3 tasks, 2 of which run." in dialog.inner_text()
        page.keyboard.press("Escape")
        dialog.wait_for(state="detached")
    bulk.get_by_role("button", name="Cancel").click()
    dialog.get_by_role("button", name="Cancel").click()
    for task in range(3):
        cluster.wait_for_state(f"{array}.{task}", "CANCELLED")


def test_changes_of_state_are_on_the_screen_without_a_reload(cluster, page):
    page.goto(at(cluster, "/queue"))
    page.evaluate("window.same = true")
    for n in range(3):
        job = submit(cluster, "--cpu-only", "--hold", name=f"quick-{n}")
        page.wait_for_selector(f"text={job} quick-{n}")
        page.evaluate(NOTE_WHEN_CANCELLED, f"quick-{n}")
        cluster.ebb("cancel", job)
        page.wait_for_selector("html[data-at]")
        page.evaluate("delete document.documentElement.dataset.at")
    assert page.evaluate("window.same")


def test_when_the_master_is_killed_the_page_says_so_keeps_the_old_and_goes_on(cluster, page):
    job = submit(cluster, "--gpus", "1", name="stays")
    cluster.wait_for_step(job, 2)
    page.goto(at(cluster, f"/jobs/{job}"))
    page.wait_for_selector(".state-line .state >> text=Running")
    places = page.evaluate(BOXES)
    other = page.context.new_page()
    other.goto(at(cluster, "/"))
    other.wait_for_selector("text=stays")
    cluster.kill(cluster.daemon("master"))
    for one in (page, other):
        one.wait_for_selector("#banner:has-text('has not answered since')")
        assert "stays" in one.inner_text("main")
    assert page.evaluate(BOXES) == places, "the words about it move nothing"
    assert page.get_by_role("button", name="Suspend").is_disabled()
    cluster.ebb("up")
    for one in (page, other):
        one.wait_for_selector("#banner", state="hidden", timeout=2 * WAIT_MS)
    page.wait_for_selector(".state-line .state >> text=Running")
    assert page.get_by_role("button", name="Suspend").is_enabled()
    other.close()


def test_text_of_others_is_only_text_in_every_page(cluster, page):
    names = [
        "<script>document.title='owned'</script>", "<img src=x onerror=\"document.title='owned'\">",
        "\"><svg onload=alert(1)>", "'; alert(1); '", "{{constructor.constructor('alert(1)')()}}", "a\u202egpj.exe",
    ]  # fmt: skip
    jobs = [submit(cluster, "--cpu-only", f"--env=TEXT={name}", name=name, steps=3) for name in names]
    for job in jobs:
        cluster.wait_for_state(job, "COMPLETED")
    running = submit(cluster, "--gpus", "2", "--env=TEXT=<b>bold</b>", name=names[1])
    cluster.wait_for_step(running, 2)
    waiting = submit(cluster, "--gpus", "2", name=names[0])
    for path in ("/", "/queue", "/queue?show=finished", f"/jobs/{running}", f"/jobs/{waiting}", f"/jobs/{jobs[0]}"):
        page.goto(at(cluster, path))
        page.wait_for_selector(":text('script'), :text('onerror')")
        assert page.evaluate("document.querySelectorAll('main script, main img').length") == 0
        assert "owned" not in page.evaluate("document.title").replace(names[0], "").replace(names[1], "")
    page.goto(at(cluster, f"/jobs/{jobs[0]}"))
    page.wait_for_selector("[role=log] :text('<script>')")
    page.goto(at(cluster, f"/queue?q={names[0]}&user={names[1]}"))
    page.wait_for_selector("text=No job is like that.")


def test_a_session_that_is_over_leads_to_the_page_where_one_logs_in(cluster, page):
    (made,) = [token for token in cluster.facts("token", "ls") if token["label"] == "dashboard"][-1:]
    cluster.ebb("token", "revoke", made["id"])
    page.wait_for_url(re.compile("/login$"))
    assert page.inner_text("#problem") == "Your session is over: its token does not hold any more."
    page.complaints.clear()  # the browser tells that its streams were refused


def test_an_operator_drains_a_node_after_seeing_what_becomes_of_its_jobs_and_undrains_it(cluster, page):
    (node,) = [found["name"] for found in cluster.facts("nodes")]
    job = submit(cluster, "--gpus", "1", name="has-to-leave")
    cluster.wait_for_step(job, 2)
    page.goto(at(cluster, "/nodes"))
    page.get_by_role("link", name=node, exact=True).click()
    page.get_by_role("button", name="Undrain").wait_for()
    assert page.get_by_role("button", name="Undrain").is_disabled()
    assert page.get_by_role("button", name="Remove").get_attribute("title") == "It is connected: stop its agent first."
    page.get_by_role("button", name="Drain", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("runs to its end").wait_for()
    dialog.get_by_label("Jobs there").select_option("they leave at once")
    dialog.get_by_text("is suspended and waits: no other node can take it now, now").wait_for()
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    assert cluster.facts("nodes")[0]["state"] == "up", "looking changes nothing"
    page.get_by_role("button", name="Drain", exact=True).click()
    dialog.get_by_label("Reason").fill("new fans")
    dialog.get_by_role("button", name="Drain").click()
    page.wait_for_selector(".state-line .state >> text=draining")
    assert "new fans" in page.inner_text("#state")
    assert page.inner_text("#jobs tbody").endswith("runs to its end")
    page.wait_for_selector("#story li:has-text('taken out of service by')")
    page.get_by_role("button", name="Undrain").click()
    page.wait_for_selector(".state-line .state >> text=up")
    assert cluster.facts("nodes")[0]["state"] == "up"


def test_somebody_tries_another_policy_cancels_it_and_gives_the_address_of_a_result_to_others(cluster, page):
    job = submit(cluster, "--gpus", "1", steps=20)
    cluster.wait_for_state(job, "COMPLETED")
    page.goto(at(cluster, "/whatif"))
    page.get_by_role("combobox", name="Policy").select_option("fitgpp")
    page.get_by_label("s", exact=True).fill("2")
    page.get_by_label("Machines").fill("2x4")
    page.route("**/stream/whatif?**", lambda route: None)  # it is not done before it is cancelled
    page.get_by_role("button", name="Simulate").click()
    page.get_by_role("button", name="Cancel").click()
    page.wait_for_selector("#said :text('Cancelled.')")
    assert page.get_by_role("button", name="Cancel").is_hidden()
    page.unroute("**/stream/whatif?**")
    page.get_by_role("button", name="Simulate").click()
    page.wait_for_selector(".what-if-table", timeout=2 * WAIT_MS)  # a simulation gives way to whatever else runs
    assert "o.s=2" in page.url
    table = page.get_by_role("table").inner_text()
    command = page.locator(".command").first.inner_text()
    assert command.endswith(" --nodes 2x4")
    other = page.context.new_page()
    other.goto(page.url)
    other.wait_for_selector(".what-if-table")
    assert other.get_by_role("table").inner_text() == table
    assert other.get_by_label("s", exact=True).input_value() == "2"
    other.close()
    page.get_by_role("button", name="Add a policy").click()
    page.get_by_role("combobox", name="Policy 2").select_option("fifo")
    page.get_by_role("button", name="Simulate").click()
    page.wait_for_selector(".what-if-table th:has-text('fifo')", timeout=2 * WAIT_MS)
    heads = page.locator(".what-if-table thead th").all_inner_texts()
    assert [words.strip() for words in heads] == ["Measure", "what happened", "1 fitgpp, s = 2", "2 fifo"]
    page.get_by_role("button", name="Remove policy 1").click()
    assert page.get_by_role("combobox", name="Policy").input_value() == "fifo"


def test_with_the_keyboard_one_goes_from_a_pool_to_its_nodes_and_to_the_gpus_of_one(cluster, page):
    job = submit(cluster, "--gpus", "1")
    cluster.wait_for_step(job, 2)
    from playwright.sync_api import expect  # only where a browser is

    page.goto(at(cluster, "/timeline?by=pool&window=hour"))
    for by, words in (("pool", "pool default, 2 GPUs"), ("node", "node ")):
        expect(page.locator("#f-by")).to_have_value(by, timeout=WAIT_MS)
        canvas = page.locator("#lanes canvas")
        expect(canvas).to_have_attribute("aria-label", re.compile(f"1 {by}"), timeout=WAIT_MS)
        canvas.focus()
        page.keyboard.press("End")
        page.wait_for_selector(f"#words:has-text('{words}')")
        assert re.search(r"\d+ % held", page.inner_text("#words"))
        page.keyboard.press("Enter")
    expect(page.locator("#f-by")).to_have_value("gpu", timeout=WAIT_MS)
    assert page.input_value("#f-node") == cluster.facts("nodes")[0]["name"]
    page.go_back()
    expect(page.locator("#f-by")).to_have_value("node", timeout=WAIT_MS)


def test_an_admin_makes_a_token_which_is_shown_once_and_revokes_it(cluster, page):
    page.goto(at(cluster, "/admin"))
    page.get_by_role("button", name="New token").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Label").fill("for a test")
    dialog.get_by_role("button", name="Create").click()
    text = page.locator(".token-text")
    text.wait_for()
    assert text.input_value().startswith("ebb_")
    page.keyboard.press("Escape")
    row = page.locator("#tokens tr").filter(has_text="for a test")
    row.wait_for()
    assert "ebb_" not in page.content()
    row.get_by_role("button", name="Revoke").click()
    assert "cannot be undone" in dialog.inner_text()
    dialog.get_by_role("button", name="Revoke").click()
    row.wait_for(state="detached")
    assert "for a test" not in json.dumps(cluster.facts("token", "ls"))


def test_who_may_not_change_nodes_is_offered_no_button_for_it(cluster, page):
    (node,) = [found["name"] for found in cluster.facts("nodes")]
    token = cluster.add_person("eve")
    other = page.context.browser.new_context(reduced_motion="reduce").new_page()
    complaints = watched(other)
    other.goto(at(cluster, "/login"))
    other.get_by_label("Or paste a token").fill(token)
    other.get_by_role("button", name="Log in").click()
    other.wait_for_selector("#tiles .tile")
    other.goto(at(cluster, f"/nodes/{node}"))
    other.wait_for_selector(".gpu-details")
    assert other.inner_text("#actions") == "Only operators can change this node."
    assert complaints == []
    other.context.close()


def test_days_of_the_usage_are_those_of_the_dashboard_in_a_browser_west_of_it_too(cluster, page):
    cluster.wait_for_step(submit(cluster, "--gpus", "1"), 2)
    context = page.context.browser.new_context(reduced_motion="reduce", timezone_id="Pacific/Honolulu")
    context.set_default_timeout(WAIT_MS)
    other = context.new_page()
    complaints = watched(other)
    log_in(cluster, other)
    before = time.strftime("%m-%d")
    other.goto(at(cluster, "/usage"))
    days = other.locator(".bar-names span")
    days.last.wait_for()
    assert days.last.inner_text() in (before, time.strftime("%m-%d"))
    assert complaints == []
    context.close()


def test_events_come_by_themselves_and_are_filtered_by_the_address(cluster, page):
    page.goto(at(cluster, "/events?about=jobs"))
    page.wait_for_selector(".story li, #events .empty")
    job = submit(cluster, "--cpu-only", "--hold", name="is-reported")
    page.wait_for_selector(f".story li:has-text('job {job}'):has-text('Job submitted')")
    page.get_by_label("Kind").select_option("Cancel requested")
    page.wait_for_url(re.compile("kind=CancelRequested"))
    page.get_by_label("Job", exact=True).fill(job)
    page.keyboard.press("Enter")
    page.wait_for_selector("#events .empty")
    cluster.ebb("cancel", job)
    page.wait_for_selector(f".story li:has-text('job {job}'):has-text('Cancel requested')")
    assert page.locator(".story li").count() == 1
    page.get_by_label("To", exact=True).fill("2001-01-01T00:00")
    page.wait_for_selector("#events .empty")
    page.get_by_role("link", name="Clear").click()
    page.wait_for_selector(".story li:nth-child(3)")


def test_the_timeline_shows_who_had_a_gpu_and_leads_to_the_job_by_keyboard(cluster, page):
    job = submit(cluster, "--gpus", "2", name="on-the-timeline")
    cluster.wait_for_step(job, 20)
    cluster.ebb("suspend", job)
    cluster.wait_for_state(job, "SUSPENDED")
    now = int(time.time())
    page.goto(at(cluster, f"/timeline?by=job&since={now - 60}&until={now + 60}"))
    page.wait_for_selector("#lanes canvas")
    page.get_by_text("The same as a table").click()
    page.wait_for_selector(f"#table tr:has-text('{job} on-the-timeline'):has-text('running'):has-text('suspended')")
    page.wait_for_selector(f"#table tr:has-text('{job} on-the-timeline'):has-text('goes on')")
    page.get_by_label("Lanes").select_option("GPUs")
    page.wait_for_url(re.compile("by=gpu"))
    page.wait_for_selector(f"#table tr:has-text('{job} on-the-timeline'):has-text('running')")
    page.get_by_label("User", exact=True).fill("nobody")
    page.keyboard.press("Enter")
    page.wait_for_selector(".empty")
    page.go_back()
    page.wait_for_selector(f"#table tr:has-text('{job} on-the-timeline'):has-text('running')")
    page.locator("#lanes canvas").focus()
    page.keyboard.press("End")
    page.wait_for_function("document.getElementById('words').textContent")
    words = [page.inner_text("#words")]
    while f"job {job} on-the-timeline" not in words[-1]:
        page.keyboard.press("ArrowLeft")
        words.append(page.inner_text("#words"))
        assert words[-1] != words[-2], words
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(f"/jobs/{job}$"))


def choose(page, name: str) -> None:
    page.get_by_label(f"Choose job {name}", exact=True).check()


def open_dialog(page, name: str) -> None:
    page.get_by_role("button", name=name).first.click()
    page.wait_for_selector("dialog[open]")


def open_node(page) -> None:
    page.locator("article.card button").first.click()
    page.wait_for_selector("dialog .gpu-details")


def every_page(cluster):
    """All pages, and what can be opened on them: the path, what shows that it is there, and what to do then."""
    (node,) = [found["name"] for found in cluster.facts("nodes")]
    first = submit(cluster, "--gpus", "1", name="a-name-that-is-rather-long-for-a-narrow-column-of-a-table")
    cluster.wait_for_step(first, 2)
    cluster.ebb("drill", first)
    ended = submit(cluster, "--cpu-only", name="ended", steps=2)
    cluster.wait_for_state(ended, "COMPLETED")
    waiting = submit(cluster, "--gpus", "2", name="waits")
    array = submit(cluster, "--cpu-only", "--array", "0-2", name="array")
    return [
        ("/", "article.card", None),
        ("/", "article.card", open_node),
        ("/", "article.card", lambda page: page.locator("details.who summary").click()),
        ("/queue", "tbody tr", None),
        ("/queue", "tbody tr", lambda page: choose(page, first)),
        ("/queue?show=finished", "tbody tr", None),
        ("/queue?q=there-is-none", ".empty", None),
        (f"/jobs/{first}", ".parts-table", None),
        (f"/jobs/{first}", ".parts-table", lambda page: open_dialog(page, "Cancel")),
        (f"/jobs/{first}", ".parts-table", lambda page: open_dialog(page, "Resize")),
        (f"/jobs/{waiting}", "#why .big", None),
        (f"/jobs/{array}", "#tasks tbody tr", None),
        (f"/jobs/{ended}", "#log .ln:text('step 2')", None),
        ("/jobs/98765", ".empty", None),
        ("/nodes", "tbody tr", None),
        ("/nodes?show=out", ".empty", None),
        ("/nodes?q=there-is-none", ".empty", None),
        (f"/nodes/{node}", ".gpu-details", None),
        (f"/nodes/{node}", ".gpu-details", lambda page: open_dialog(page, "Drain")),
        ("/nodes/there-is-none", ".empty", None),
        ("/events", ".story li", None),
        ("/events?kind=NodeRemoved", ".empty", None),
        (f"/arrays/{array}", "#tasks-table tbody tr", None),
        (f"/arrays/{array}?page=7", "#tasks-table p", None),
        ("/timeline", "#lanes canvas", None),
        ("/timeline?window=hour", "#lanes canvas", lambda page: page.locator(".as-table summary").click()),
        ("/timeline?by=job&window=day", "#lanes canvas", lambda page: page.locator(".as-table summary").click()),
        ("/timeline?user=nobody", ".empty", None),
        ("/timeline?by=pool", "#lanes canvas", lambda page: page.locator(".as-table summary").click()),
        ("/timeline?by=node&window=hour", "#lanes canvas", lambda page: page.locator(".as-table summary").click()),
        ("/usage", ".usage tbody tr", None),
        ("/whatif", "#tries select", None),
        ("/whatif?policy=fifo", ".what-if-table", None),
        (
            "/whatif?policy=fifo&policy=fitgpp&policy=tide&policy=malleable-equipartition",
            ".what-if-table th:nth-child(6)",
            None,
        ),
        ("/whatif?policy=fifo&o.resize_after_s=soon", "#result .problem", None),
        ("/admin", "#agents tbody tr", lambda page: page.locator("#settings .as-table summary").click()),
        ("/admin", "#agents tbody tr", lambda page: open_dialog(page, "New token")),
        ("/usage?window=day&by=pool", ".usage tbody tr", lambda page: page.locator(".as-table summary").click()),
    ]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_axe_finds_nothing_serious_and_everything_fits_at_every_width(cluster, page, theme):
    pages = some_of(every_page(cluster))
    context = page.context
    plain = context.browser.new_context(bypass_csp=True, reduced_motion="reduce", color_scheme=theme)
    stranger = plain.new_page()
    stranger.goto(at(cluster, "/login"))
    plain.add_cookies(context.cookies())
    one, problems = plain.new_page(), []
    one.set_default_timeout(WAIT_MS)
    for path, ready, prepare in pages:
        one.set_viewport_size({"width": WIDE[0], "height": WIDE[1]})
        one.goto(at(cluster, path))
        one.wait_for_selector(ready)
        if prepare is not None:
            prepare(one)
        problems += [f"{path} {words}" for words in problems_of(one, ready)]
    problems += [f"/login {words}" for words in problems_of(stranger, "#by-token")]
    plain.close()
    assert "\n".join(problems) == ""


def problems_of(page, ready: str) -> list[str]:
    """What is wrong with a page as it is now, at every width."""
    problems = []
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        page.wait_for_selector(ready)
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        problems += [f"at {width}: {wide} pixels too wide"] if wide > 0 else []
        problems += [f"at {width}: {words}" for words in serious(page)] if width != SIZES[1][0] else []
    return problems


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_on_a_telephone_everything_can_be_reached(cluster, page):
    for path, ready, prepare in every_page(cluster):
        page.set_viewport_size({"width": WIDE[0], "height": WIDE[1]})
        page.goto(at(cluster, path))
        page.wait_for_selector(ready)
        page.wait_for_function(FILTERS_ARE_FILLED)
        if prepare is not None:
            prepare(page)
        here = controls(page, WIDE)
        assert sorted(here - controls(page, NARROW)) == [], path
        if not page.locator("dialog[open], details.who[open]").count():  # these cover what is behind them
            assert out_of_reach(page) == [], path
    page.complaints[:] = [words for words in page.complaints if "404" not in words]


def test_on_a_telephone_a_job_is_found_and_suspended(cluster, page):
    job = submit(cluster, "--gpus", "1", name="small")
    cluster.wait_for_step(job, 2)
    page.set_viewport_size({"width": NARROW[0], "height": NARROW[1]})
    page.goto(at(cluster, "/"))
    page.get_by_label("Find a job").fill("small")
    page.keyboard.press("Enter")
    page.get_by_role("link", name=f"{job} small").click()
    page.get_by_role("button", name="Suspend").click()
    page.wait_for_selector(".state-line .state >> text=Suspended")
    page.locator("details.who summary").click()
    assert page.get_by_role("button", name="Log out").is_visible()


def test_an_empty_cluster_says_what_fills_it(cluster, page):
    page.goto(at(cluster, "/queue"))
    page.wait_for_selector("text=ebb submit --gpus 1 -- python train.py")
    page.goto(at(cluster, "/"))
    page.wait_for_selector("text=No job waits.")
