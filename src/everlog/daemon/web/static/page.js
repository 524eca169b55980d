// The page's one module: what the server rendered can be read without it; changes are made here.

const $ = (selector, within = document) => within.querySelector(selector);
const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
const root = document.documentElement, facts = document.body.dataset, { view } = facts, escaped = encodeURIComponent;
const on = addEventListener, active = () => document.activeElement, focus = (one) => one?.focus({ preventScroll: true });
const write = (name, text) => { $(`[data-${name}]`).textContent = text; }, top = (one) => one.getBoundingClientRect().top;
const many = (number) => number.toLocaleString("en"), visit = (to) => location.assign(to), open = (made) => visit(`/sessions/${escaped(made.id)}`);

// --- telling and asking

function toast(text, { bad, action, act } = {}) {
  $$(".toast").find((one) => one.textContent === text)?.remove(); // told again, not twice
  const box = document.createElement("div");
  box.className = bad ? "toast bad" : "toast";
  box.textContent = text;
  if (action) {
    const button = document.createElement("button");
    button.textContent = action;
    button.onclick = () => { box.remove(); act(); };
    box.append(button);
  }
  $("[data-toasts]").append(box);
  setTimeout(() => box.remove(), action || bad ? 12000 : 4000);
}

// A question: answers true, or with `value` the text that was typed, or null.
function ask(title, { text = "", yes = "Yes", danger = false, label = "", value } = {}) {
  const dialog = $("[data-ask]"), field = $("[data-ask-field]"), input = $("input", field);
  const ok = $("[data-ask-yes]");
  write("ask-title", title);
  write("ask-text", text);
  ok.textContent = yes;
  ok.classList.toggle("danger", danger);
  field.hidden = value === undefined;
  write("ask-label", label);
  input.value = value || "";
  dialog.returnValue = "no";
  dialog.showModal();
  if (value === undefined) ok.focus(); else input.select();
  return new Promise((done) => {
    dialog.onclose = () => done(dialog.returnValue === "yes" ? value === undefined || input.value : null);
  });
}

// --- calls: JSON to the API; pieces of pages as HTML

async function call(method, path, said) {
  const headers = { "X-Everlog": "1", "Content-Type": "application/json" };
  const answer = await reach(path, { method, headers, body: JSON.stringify(said) });
  const told = await answer.json().catch(() => null);
  if (!answer.ok) throw new Error([told?.error || `The daemon answered ${answer.status}`, ...(told?.details || []), told?.hint].filter(Boolean).join(": "));
  return told;
}

async function piece(path) {
  const answer = await reach(path), made = document.createElement("template");
  made.innerHTML = await answer.text(); // rendered and escaped by the server
  if (!answer.ok) throw new Error($("h1", made.content)?.textContent || `The daemon answered ${answer.status}`);
  return made.content;
}

async function reach(path, how) {
  const answer = await fetch(path, how).catch(() => { throw new Error("The daemon does not answer"); });
  if (answer.status === 401) throw new Error("This browser is not let in any more. A new link: everlog page");
  return answer;
}

const cry = (text) => toast(text, { bad: true }), told = (error) => cry(error.message || String(error));
// Begins at once, so that `act` can still prevent what the browser would do.
const carefully = (act) => async (...given) => { try { return await act(...given); } catch (error) { told(error); } };

// Buttons and forms with data-call: see README.md.
on("click", carefully(async (event) => {
  const button = event.target.closest("button[data-call]");
  if (!button) return;
  const { confirm, yes, body } = button.dataset;
  if (confirm && !(await ask(confirm, { yes, danger: "danger" in button.dataset }))) return;
  await perform(button, button.dataset, body && JSON.parse(body));
}));
on("submit", carefully(async (event) => {
  const form = event.target.closest("form[data-call]");
  if (!form) return;
  event.preventDefault();
  const fields = Object.fromEntries([...new FormData(form)].filter(([, value]) => value !== ""));
  await perform($("button:not([type=button])", form), form.dataset, fields);
}));
async function perform(button, { call: what, then = "reload" }, said) {
  button.disabled = true;
  try {
    await call(...what.split(" "), said);
  } finally {
    button.disabled = false;
  }
  button.form?.reset();
  if (then.startsWith("/")) visit(then);
  else if (then !== "reload") toast(then);
  else if ($$("form[data-call] textarea").some((one) => one.value !== one.defaultValue)) toast("Done: reload when your text is saved");
  else location.reload();
}
setInterval(() => { if ($("main[data-again]") && !$("dialog[open], main :focus, main details[open]")) location.reload(); }, 2500);

// --- the socket: one for the page, which comes back by itself

// As the server shows what could turn text around, or hide in it.
const clean = (key, value) => value?.replace?.(/[\0-\b\v-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]/g, "\ufffd") ?? value;
const socket = {
  wait: 500,
  // greet: called whenever the connection is there (again); hear: with every event.
  start(greet, hear) {
    const wire = this.wire = new WebSocket(`${location.origin.replace("http", "ws")}/ws`);
    wire.onopen = () => { this.wait = 500; write("link", ""); greet(); };
    wire.onmessage = (event) => hear(JSON.parse(event.data, clean));
    wire.onclose = () => {
      write("link", "Not connected: trying again");
      reach("/static/icon.svg").catch((error) => { if (this.wire.readyState !== 1) write("link", `Not connected: ${error.message}`); });
      setTimeout(() => this.start(greet, hear), this.wait);
      this.wait = Math.min(this.wait * 2, 15000);
    };
  },
  say(said) { this.wire.send(JSON.stringify(said)); }, // while greeting
};

// --- light and dark, help, keys

$("[data-theme-toggle]").onclick = () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  document.cookie = `everlog_theme=${root.dataset.theme}; Path=/; Max-Age=31536000; SameSite=Strict`;
};
$("[data-help]").onclick = () => $("[data-help-dialog]").showModal();

const keys = {
  j: () => step(1), k: () => step(-1),
  g: () => scrollTo(0, 0), G: () => scrollTo(0, document.body.scrollHeight),
  "/": () => $("input[type=search]")?.select(),
  "?": () => $("[data-help]").click(),
};
function step(by) {
  const items = $$("[data-item]").filter((one) => one.offsetParent);
  const now = items.findIndex((one) => one.contains(active()));
  const next = items.at(now < 0 ? (by > 0 ? items.findIndex((one) => top(one) >= 48) : -1) : Math.max(0, now + by));
  if (!next) return;
  const target = next.matches("a, button, [tabindex]") ? next : $("a, button, [tabindex]", next);
  focus(target);
  next.scrollIntoView({ block: "nearest" });
}

on("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("dialog[open]")) return;
  const field = event.target.closest("input, textarea, select");
  if (event.key === "Escape") {
    if (field?.type === "search" && field.value) { field.value = ""; field.dispatchEvent(new Event("input")); }
    else if (field) field.blur();
    else keys.Escape?.();
  } else if (!field && keys[event.key]) {
    event.preventDefault();
    keys[event.key]();
  }
});

// --- times that grow old

setInterval(() => {
  for (const one of $$("time[datetime]")) {
    const minutes = (new Date - new Date(one.dateTime)) / 6e4 | 0;
    const [by, unit] = minutes < 60 ? [1, "min"] : minutes < 1440 ? [60, "h"] : [1440, "d"];
    if (minutes > 0 && /ago|now/.test(one.textContent)) one.textContent = `${minutes / by | 0} ${unit} ago`;
  }
}, 30000);

// --- what was seen in this browser, by session

const seen = { // a key each: other pages write theirs meanwhile
  since: localStorage.since ||= new Date().toISOString(),
  is(id, count, active) {
    const known = localStorage[`seen:${id}`];
    return known ? +known >= count : active < this.since;
  },
  mark(id, count) {
    const key = `seen:${id}`, others = Object.keys(localStorage).filter((one) => one.startsWith("seen:") && one !== key);
    if (others.length > 2000) delete localStorage[others.sort()[0]];
    localStorage[key] = count;
  },
};

const later = (act, wait) => {
  let timer;
  return () => { clearTimeout(timer); timer = setTimeout(act, wait); };
};

const near = (act, rootMargin) => new IntersectionObserver((all) => all.forEach((one) => one.isIntersecting && act(one.target)), { rootMargin });

// --- the list

function list() {
  const box = $("[data-rows]"), form = $("[data-find]"), field = $("input[type=search]", form);

  function mark() {
    for (const row of $$(".row", box)) {
      row.classList.toggle("unread", !seen.is(row.dataset.id, +row.dataset.count, row.dataset.active));
    }
    const more = $("[data-more]", box);
    if (more) nearby.observe(more);
  }
  const further = carefully(async (link) => {
    const rows = await (link.rows ||= rowsOf(link.href));
    if (!link.isConnected) return;
    $(".rows", box).append(...$$(".row", rows).filter((one) => !rowOf(one.dataset.id)));
    link.parentNode.replaceWith($("[data-more]", rows)?.parentNode || "");
    mark();
  });
  const nearby = near(further, "1200px"), rowOf = (id, within = box) => $(`.row[data-id="${CSS.escape(id)}"]`, within);
  on("storage", mark);

  const gone = new Set();
  const rowsOf = async (where) => {
    const rows = await piece(where + (where.includes("?") ? "&" : "?") + "part=rows");
    for (const id of gone) rowOf(id, rows)?.remove(); // they went while this was on its way
    return rows;
  };
  const address = () => {
    const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value.trim()));
    return query.size ? `/?${query}` : "/";
  };
  let asked = 0;
  const refresh = carefully(async () => {
    const number = ++asked, where = address();
    const rows = await rowsOf(where);
    if (number !== asked) return; // something newer was typed
    history.replaceState(null, "", where);
    box.replaceChildren(rows);
    mark();
  });
  field.oninput = later(refresh, 120);
  form.onsubmit = (event) => { event.preventDefault(); refresh(); };

  // Live: the first page again; only rows that differ are replaced.
  const renew = carefully(async () => {
    if (field.value.trim()) return;
    const fresh = await rowsOf(address()), rows = $(".rows", box);
    if (!rows || field.value.trim()) return;
    const total = $("p.count", fresh);
    if (total) $("p.count", box)?.replaceWith(total);
    $("p.empty", box)?.remove();
    const held = active()?.closest(".row")?.dataset.id;
    let place = rows.firstElementChild;
    for (const row of $$(".row", fresh)) {
      const old = rowOf(row.dataset.id);
      if (old && old === place && old.innerHTML === row.innerHTML) { place = place.nextElementSibling; continue; }
      if (old) { if (old === place) place = place.nextElementSibling; old.remove(); }
      rows.insertBefore(row, place);
    }
    mark();
    if (held) focus($("a", rowOf(held)));
  });
  const anew = async () => { const y = scrollY; await refresh(); back(y); };
  let soon, again; // soon is not put off, or it never comes
  socket.start(() => { socket.say({ type: "watch" }); if (again) anew(); again = true; }, (event) => {
    if (event.type !== "listing_changed") return;
    for (const id of event.gone) { gone.add(id); rowOf(id)?.remove(); }
    if (event.lost) anew(); else soon ||= setTimeout(() => { soon = 0; renew(); }, 150);
  });

  keys.n = carefully(async () => open(await call("POST", "/api/sessions", {})));
  $("[data-new]").onclick = keys.n;
  mark();

  // Who comes back finds the list, and the place in it, as it was.
  async function back(place) {
    for (let link; scrollTo({ top: place }), scrollY < place - 1 && (link = $("[data-more]", box));) {
      await further(link);
      if (link.isConnected) return;
    }
  }
  back(history.state?.y);
  on("pagehide", () => { history.replaceState({ y: scrollY }, ""); sessionStorage.list = location.search; });
}

// --- a session: every part of the transcript is an element keyed by its seq

function session() {
  const { id, address, at } = facts, api = `/api/sessions/${escaped(id)}`, post = (path, said) => call("POST", `${api}/${path}`, said);
  const box = $("[data-transcript]"), pending = $("[data-pending]"), streamed = $("[data-streamed]");
  const thoughts = $(".thinking pre", pending), news = $("[data-new-messages]"), stop = $("[data-cancel]");
  const form = $("[data-compose]"), field = form && $("textarea", form), line = $("[data-queue]");
  const draft = `draft:${id}`, seek = $("[data-seek] input"), hits = $("[data-hits]"), nav = $("[data-outline] nav");
  let head = +facts.head, last = head, count = +facts.count, run = facts.run, ended = "end" in facts;

  const bottom = () => innerHeight + scrollY >= root.scrollHeight - 90;
  const toEnd = () => scrollTo(0, root.scrollHeight);
  const parts = (within = box) => [...within.children].filter((one) => one.dataset.seq);
  const seqOf = (one) => +one.dataset.seq;
  const part = (path) => piece(`${address}/${path}`);
  const byId = (name) => document.getElementById(name), endOf = (one) => +(one.dataset.last || seqOf(one));

  const read = () => parts().find((one) => one.getBoundingClientRect().bottom > 150);
  const unfold = (found) => parts(found).forEach((one) => {
    const old = byId(one.id), all = $$("details", one);
    if (old) $$("details", old).forEach((was, n) => { if (was.open && all[n]) all[n].open = true; });
  });
  // Change the page; what is being read, or the end of it, stays where it is.
  function still(change) {
    const stuck = ended && bottom(), held = read(), was = held && top(held), focused = active()?.closest("[data-seq]");
    change();
    const now = held && byId(held.id);
    if (focused?.isConnected === false) focus(byId(focused.id));
    if (stuck) toEnd();
    else if (now) scrollBy(0, top(now) - was);
    settle();
  }
  function put(found) {
    unfold(found);
    for (const one of parts(found)) {
      const old = byId(one.id), next = parts().find((other) => seqOf(other) > seqOf(one));
      if (!old && next && next === parts()[0] && $("[data-older], [data-past]", box)) continue; // its page is not here
      if (old?.parentNode === box) old.replaceWith(one); else box.insertBefore(one, next || $(":scope > .turn:last-child", box));
    }
    $("[data-empty]")?.remove();
  }
  let order = Promise.resolve(); // pieces go in one by one
  const inOrder = (act) => { order = order.then(act).catch(told); return order; };
  const show = (path) => inOrder(async () => { const found = await part(path); still(() => put(found)); });
  // Everything anew: the end of it, or, for who reads elsewhere, what is there already.
  const refresh = () => inOrder(async () => {
    const all = parts(), high = Math.max(...(ended ? [head] : all.map(endOf)));
    if (ended || !all[0]) {
      const found = await part(`older?before=${2 ** 53 - 1}`);
      if (bottom() || !read() || found.getElementById(read().id)) {
        unfold(found);
        still(() => { box.replaceChildren(found); ended = true; });
        return;
      }
    }
    const found = new DocumentFragment();
    for (let low = Math.ceil(seqOf(all[0])); low <= high; low += 400) found.append(await part(`rows?low=${low}&high=${Math.min(low + 400, high + 1)}`));
    unfold(found);
    still(() => { all.at(-1).after(found); all.forEach((one) => one.remove()); });
  });

  const edges = near(turn, "700px");
  function turn(link) {
    if (link.busy) return order;
    link.busy = true;
    const back = link.dataset.older || link.dataset.past;
    return inOrder(async () => {
      const found = await part(back ? `older?before=${back}` : `newer?after=${link.dataset.newer}`);
      $(back ? "[data-newer]" : "[data-older]", found)?.parentNode.remove();
      if (!back) ended = !$("[data-newer]", found);
      still(() => { link.parentNode.remove(); box[back ? "prepend" : "append"](found); });
    });
  }
  const kinds = { user: ".said.user", agent: ".said.assistant", tool: ".call", error: ".call.failed, .line.failed, .line.damaged" };
  const of = (kind) => $$(kinds[kind], box);
  function settle() {
    for (const link of $$(".turn a", box)) edges.observe(link);
    for (const chip of $$("[data-jump]")) $("[data-number]", chip).textContent = of(chip.dataset.jump).length + ($(".turn, .ask-past", box) ? "+" : "");
    reading();
  }
  function reading() {
    news.hidden = ended && bottom();
    if (news.hidden) news.textContent = "To the end ↓";
    here();
  }

  // --- going to places
  function land(one, block = "start") {
    if (one.matches("details")) { one.open = true; one = $("summary", one); }
    else if (!one.hasAttribute("tabindex")) one.tabIndex = -1;
    focus(one);
    one.scrollIntoView({ block });
  }
  function go(seq) {
    const one = byId(`m${seq}`), text = seek.value.trim();
    if (one) {
      land(one, "center");
      const spot = mark(one, text)?.getBoundingClientRect();
      if (spot && (spot.top < 150 || spot.bottom > innerHeight - 90)) scrollBy(0, spot.top - innerHeight / 2);
    }
    else visit(`${address}?at=${seq}${text ? `&find=${escaped(text)}` : ""}#m${seq}`);
  }
  on("click", carefully(async (event) => {
    const link = event.target.closest("a");
    for (const one of $$(".menu[open]")) if (!one.contains(event.target)) one.open = false;
    if (!event.target.closest("[data-seek]")) hits.hidden = true;
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    const { past, older, newer, full, to } = link.dataset;
    if (past || older || newer || full || to || "gone" in link.dataset) event.preventDefault(); else return;
    if (past) { await turn(link); land(parts().filter((one) => seqOf(one) < past - 0.5).at(-1), "end"); }
    else if (older || newer) turn(link);
    else if (full) show(`messages/${full}?full=1`);
    else if (to) go(to);
    else { link.closest(".line").append(await piece(link.href)); link.remove(); }
  }));
  for (const chip of $$("[data-jump]")) {
    chip.onclick = (event) => {
      const all = of(chip.dataset.jump), held = all.indexOf(chip.last), by = event.shiftKey ? -1 : 1;
      let next = all[held + by];
      if (held < 0) next = by > 0 ? all.find((one) => top(one) > 155) : all.findLast((one) => top(one) < 145);
      next ||= all.at(by > 0 ? 0 : -1);
      if (!next) return;
      next.scrollIntoView();
      chip.last = next;
      next.animate({ outline: ["3px solid", "0 solid"] }, 1500);
    };
  }
  const here = () => {
    const now = ended && bottom() ? Infinity : parts().findLast((one) => top(one) < innerHeight / 2)?.dataset.seq ?? 0;
    const link = $$("a", nav).findLast((one) => +one.dataset.to <= now), old = $("a[aria-current]", nav);
    if (link === old) return;
    if (old) old.ariaCurrent = null;
    if (!link) return;
    link.ariaCurrent = true;
    nav.parentNode.scrollTop = link.offsetTop - nav.parentNode.clientHeight / 2;
  };
  on("scroll", later(reading, 60), { passive: true });
  news.onclick = () => ended ? toEnd() : visit(address);
  const outline = carefully(async () => { nav.replaceChildren(await part("outline")); here(); });
  const outlineSoon = later(outline, 800);
  $("[data-outline]").open = matchMedia("(min-width: 62rem)").matches;

  // --- find: the server looks through all of it; hits are marked
  function mark(within, text) {
    if (!window.Highlight) return;
    const ranges = [], walk = document.createTreeWalker(within, NodeFilter.SHOW_TEXT), sought = new RegExp(text.replace(/\W/g, "\\$&"), "gi");
    while (text && walk.nextNode() && ranges.length < 500) {
      for (const { index } of walk.currentNode.data.matchAll(sought)) {
        const range = new Range();
        range.setStart(walk.currentNode, index);
        range.setEnd(walk.currentNode, index + text.length);
        ranges.push(range);
      }
    }
    CSS.highlights.set("found", new Highlight(...ranges));
    return ranges[0];
  }
  let shown, looking;
  const look = () => {
    const text = seek.value.trim();
    return looking = text === shown ? looking : search(shown = text);
  };
  const search = carefully(async (text) => {
    const found = text && await part(`find?q=${escaped(text)}&at=${at}`);
    if (text !== seek.value.trim()) return;
    hits.replaceChildren(found);
    hits.hidden = !text || active() !== seek;
    mark(box, text);
  });
  const hit = (by) => {
    const all = $$("a", hits), now = all.findIndex((one) => one.ariaCurrent);
    const next = all[(Math.max(now, -(by > 0)) + by + all.length) % all.length];
    if (!next) return;
    if (all[now]) all[now].ariaCurrent = null;
    next.ariaCurrent = true;
    hits.hidden = true;
    go(next.dataset.to);
  };
  seek.oninput = later(look, 200);
  seek.onfocus = () => { hits.hidden = !seek.value.trim(); };
  seek.form.onsubmit = async (event) => { event.preventDefault(); await look(); hit(1); };

  // --- what happens
  let calls = 0;
  const calm = carefully(async () => {
    const number = ++calls, found = await part("queue");
    if (number !== calls) return; // something has happened since
    busy($("[data-running]", found).dataset.running);
    still(() => line.replaceChildren(found));
  });
  // What was streamed goes when its message is there; more may have come by then.
  function hush() {
    draw();
    const old = [...streamed.childNodes, ...thoughts.childNodes];
    return () => old.forEach((one) => one.remove());
  }
  function busy(now) {
    if (now !== run || !now) hush()();
    run = now;
    still(() => { pending.hidden = !run; });
    if (stop) stop.hidden = !run;
  }
  const working = (text) => write("status", text);
  let said = ["", ""], drawn = 0;
  function draw() {
    const stuck = ended && bottom();
    drawn = 0;
    streamed.append(said[0]);
    thoughts.append(said[1]);
    said = ["", ""];
    if (stuck) toEnd();
  }
  function stream(text, which) {
    said[which] += text;
    drawn ||= requestAnimationFrame(draw);
  }
  const hear = {
    subscribed(event) { if (event.seq > head) refresh(); head = Math.max(head, event.seq); calm(); },
    message({ seq, message }) {
      last = Math.max(last, seq);
      head = Math.max(head, seq);
      shown = 0; // there may be another hit
      seen.mark(id, ++count);
      write("messages", `${many(count)} message${count > 1 ? "s" : ""}`);
      if (message.role === "user") outlineSoon();
      if (!ended || !bottom()) news.textContent = "New messages ↓";
      const hushed = message.role === "assistant" ? hush() : () => {};
      if (!ended) { hushed(); return; }
      inOrder(async () => {
        const found = await part(`messages/${seq}`);
        still(() => { hushed(); put(found); });
        if (message.role === "user") calm();
      });
    },
    run_start({ runId }) { busy(runId); working("working"); calm(); },
    stream_delta({ text }) { stream(text, 0); },
    thinking_delta({ text }) { stream(text, 1); },
    tool_start({ toolName }) { working(`running ${toolName}`); },
    tool_result() { working("working"); },
    message_complete({ content }) { write("aloud", `Agent: ${content.slice(0, 300)}`); calm(); },
    status({ message }) { (run ? working : toast)(message); },
    error(event) {
      if (event.code !== "RunCancelledError") cry(event.message + (event.hint ? `: ${event.hint}` : ""));
      if (ended) show(`newer?after=${last}`);
      calm();
    },
    queued: calm,
    session_renamed({ name }) { write("title", name); document.title = `${name} · everlog`; },
    session_changed({ change, seq, seqs }) {
      head = Math.max(head, seq);
      if (change === "deleted") { delete localStorage[draft]; cry("This session was deleted"); }
      else if (change === "rewound") { refresh(); outlineSoon(); }
      else {
        const covered = (one) => seqs.some((of) => seqOf(one) <= of && of <= endOf(one));
        const old = parts().filter(covered), ends = old.flatMap((one) => [seqOf(one), endOf(one)]);
        if (old.length) show(`rows?low=${Math.min(...seqs, ...ends)}&high=${Math.max(...seqs, ...ends) + 1}`);
        outlineSoon();
      }
    },
    compact_start({ messages }) { toast(`Summarising ${messages} messages`); },
    compact_end({ tokensFreed }) { if (tokensFreed) toast(`Compacted: ${many(tokensFreed)} tokens fewer`); refresh(); },
    compact_failed({ error }) { cry(`Not compacted: ${error}`); },
    token_warning({ percent }) { toast(`The context is ${percent} % full`); },
  };
  socket.start(() => socket.say({ type: "subscribe", sessionId: id, after: last }), (event) => {
    if (event.sessionId === id) hear[event.type]?.(event);
    else if (event.type === "error" && !event.sessionId) cry(event.message);
  });

  // --- saying something
  if (form) {
    let sent = Promise.resolve();
    const grow = () => {
      const stuck = ended && bottom();
      field.style.height = "auto";
      field.style.height = `${field.scrollHeight + 2}px`;
      if (stuck) toEnd();
    };
    field.value = localStorage[draft] || "";
    field.oninput = () => { grow(); localStorage[draft] = field.value; };
    field.onkeydown = (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); form.requestSubmit(); }
      if (event.key === "Escape" && run && !field.value) { event.stopPropagation(); stop.click(); }
    };
    form.onsubmit = carefully(async (event) => {
      event.preventDefault();
      const content = field.value, fill = (text) => { field.value = text; grow(); };
      if (!content.trim()) return;
      fill("");
      sent = sent.catch(() => {}).then(() => post("messages?wait=false", { content }));
      try { await sent; } catch (why) { fill(`${field.value}\n${content}`.trim()); throw why; }
      if (!field.value) delete localStorage[draft];
      if (ended) toEnd(); else visit(address);
    });
    stop.onclick = carefully(() => post("cancel", { runId: run }));
    line.onclick = carefully(async ({ target }) => {
      if (!target.dataset.withdraw) return;
      const { cancelled } = await post("cancel", { runId: target.dataset.withdraw });
      if (!cancelled) toast("Its turn has begun already");
      calm();
    });
    grow();
  }

  // --- doing something with it
  const acts = {
    async link(seq) { await navigator.clipboard.writeText(`${location.origin}${address}?at=${seq}#m${seq}`); toast("Link copied"); },
    async fork(seq, through) { open(await post("fork", { at: through })); },
    async rewind(seq, through) {
      const text = "What was said after it leaves the conversation. The log keeps it.";
      if (await ask("Rewind to here?", { text, yes: "Rewind", danger: true })) await post("rewind", { toSeq: through });
    },
    async hide(seq) {
      await call("DELETE", `${api}/messages/${seq}`);
      toast("Message deleted", { action: "Undo", act: carefully(() => acts.restore(seq)) });
    },
    restore: (seq) => post(`messages/${seq}/restore`),
    async rename() {
      const name = await ask("Rename", { label: "Title", yes: "Rename", value: $("[data-title]").textContent });
      if (name?.trim()) await call("PATCH", api, { name: name.trim() });
    },
    async remove() {
      if (await ask("Delete this session?", { text: "It is removed for good.", yes: "Delete", danger: true })) {
        await call("DELETE", api);
        visit("/");
      }
    },
    async compact() {
      const plan = await post("compact", { dryRun: true }), dialog = $("[data-compact]");
      if (!plan.record) { toast(`Nothing to compact: ${plan.reason}`); return; }
      const { firstKeptSeq, summary } = plan.record, { messages = 0, tokens = 0, tokensFreed = 0 } = plan;
      write("cut", `${messages} messages before message ${firstKeptSeq} would be summarised: from ${many(tokens)} to about ${many(tokens - tokensFreed)} tokens.`);
      write("summary", summary);
      dialog.onclose = carefully(async () => {
        if (dialog.returnValue !== "yes") return;
        const made = await post("compact", { focus: $("input", dialog).value });
        if (!made.compacted) cry(`Not compacted: ${made.reason}`);
      });
      dialog.returnValue = "no";
      dialog.showModal();
    },
  };
  const shut = (menu) => { if (menu) { menu.open = false; focus($("summary", menu)); } return menu; };
  on("click", carefully(async ({ target }) => {
    const button = target.closest("[data-act]");
    if (!button) return;
    const part = button.closest("[data-seq]"), seq = +part?.dataset.seq;
    const through = Math.max(seq, ...(part ? $$(".call[id]", part).map((one) => +one.id.slice(1)) : []));
    shut(button.closest(".menu"));
    await acts[button.dataset.act](seq, through);
  }));

  Object.assign(keys, {
    g: () => ($("[data-older], [data-past]", box) ? visit(`${address}?at=1#m1`) : scrollTo(0, 0)),
    c: () => field?.focus(), n: () => hit(1), N: () => hit(-1), G: () => (ended ? toEnd() : visit(address)),
    e: () => { const all = $$(".call", box), to = !all.some((one) => one.open); still(() => all.forEach((one) => { one.open = to; })); },
    Escape: () => { if (shut($(".menu[open]"))) return; if (seek.value) { seek.value = ""; look(); } else visit(`/${sessionStorage.list || ""}`); },
  });

  history.scrollRestoration = "manual";
  seek.value = new URLSearchParams(location.search).get("find") || "";
  settle();
  const aim = at > 0 && (byId(`m${at}`) || parts().findLast((one) => seqOf(one) <= at));
  const begin = () => { if (aim) land(aim, "center"); else if (ended) toEnd(); };
  begin();
  on("load", begin, { once: true }); // behind the browser's own going there
  if (seek.value) look();
  pending.hidden = !run;
  seen.mark(id, count);
  outline();
}

if (view === "list") list();
if (view === "session") session();
