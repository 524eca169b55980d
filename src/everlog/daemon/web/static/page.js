const $ = (selector, within = document) => within.querySelector(selector);
const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
const root = document.documentElement, data = document.body.dataset, { view } = data, escaped = encodeURIComponent;
const on = addEventListener, active = () => document.activeElement, focus = el => el?.focus({ preventScroll: true });
const write = (name, text) => { $(`[data-${name}]`).textContent = text; }, top = el => el.getBoundingClientRect().top;
const format = number => number.toLocaleString("en"), visit = to => location.assign(to), openSession = session => visit(`/sessions/${escaped(session.id)}`);

// --- toasts and dialogs

function toast(text, { bad, action, act } = {}) {
  $$(".toast").find(el => el.textContent === text)?.remove();
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

// Resolves to true, or with `value` to the typed text; null if cancelled.
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
  return new Promise(done => {
    dialog.onclose = () => done(dialog.returnValue === "yes" ? value === undefined || input.value : null);
  });
}

// --- requests: JSON to the API, parts of pages as HTML

async function call(method, path, body) {
  const headers = { "X-Everlog": "1", "Content-Type": "application/json" };
  if (data.told) path += `${path.includes("?") ? "&" : "?"}continueHere=true`;
  const response = await request(path, { method, headers, body: JSON.stringify(body) });
  const reply = await response.json().catch(() => null);
  if (!response.ok) throw new Error([reply?.error || `The daemon answered ${response.status}`, ...(reply?.details || []), reply?.hint].filter(Boolean).join(": "));
  return reply;
}

async function fetchHtml(path) {
  const response = await request(path), template = document.createElement("template");
  template.innerHTML = await response.text(); // rendered and escaped by the server
  if (!response.ok) throw new Error($("h1", template.content)?.textContent || `The daemon answered ${response.status}`);
  return template.content;
}

async function request(path, options) {
  const response = await fetch(path, options).catch(() => { throw new Error("The daemon does not respond"); });
  if (response.status === 401) throw new Error("Signed out. For a new link, run: everlog page");
  return response;
}

const warn = text => toast(text, { bad: true }), report = error => warn(error.message || String(error));
const catching = act => async (...args) => { try { return await act(...args); } catch (error) { report(error); } };

on("click", catching(async event => {
  const button = event.target.closest("button[data-call]");
  if (!button) return;
  const { confirm, yes, body } = button.dataset;
  if (confirm && !(await ask(confirm, { yes, danger: "danger" in button.dataset }))) return;
  await perform(button, button.dataset, body && JSON.parse(body));
}));
on("submit", catching(async event => {
  const form = event.target.closest("form[data-call]");
  if (!form) return;
  event.preventDefault();
  const fields = Object.fromEntries([...new FormData(form)].filter(([, value]) => value !== ""));
  await perform($("button:not([type=button])", form), form.dataset, fields);
}));
async function perform(button, { call: target, then = "reload" }, body) {
  let reply;
  button.disabled = true;
  try {
    reply = await call(...target.split(" "), body);
  } finally {
    button.disabled = false;
  }
  button.form?.reset();
  if (then.startsWith("/")) visit(then);
  else if (then === "open") openSession(reply);
  else if (then !== "reload") toast(then);
  else if ($$("form[data-call] textarea").some(el => el.value !== el.defaultValue)) toast("Done. Reload the page when your text is saved");
  else location.reload();
}
setInterval(() => { if ($("main[data-again]") && !$("dialog[open], main :focus, main details[open]")) location.reload(); }, 2500);

// --- the WebSocket, which reconnects by itself

const clean = (key, value) => value?.replace?.(/[\0-\b\v-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]/g, "\ufffd") ?? value;
const socket = {
  wait: 500,
  start(onOpen, onEvent) {
    const ws = this.ws = new WebSocket(`${location.origin.replace("http", "ws")}/ws`);
    ws.onopen = () => { this.wait = 500; write("link", ""); onOpen(); };
    ws.onmessage = event => onEvent(JSON.parse(event.data, clean));
    ws.onclose = () => {
      write("link", "Disconnected: reconnecting");
      request("/static/icon.svg").catch(error => { if (this.ws.readyState !== 1) write("link", `Disconnected: ${error.message}`); });
      setTimeout(() => this.start(onOpen, onEvent), this.wait);
      this.wait = Math.min(this.wait * 2, 15000);
    };
  },
  send(message) { this.ws.send(JSON.stringify(message)); }, // in onOpen
};

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
  const items = $$("[data-item]").filter(el => el.offsetParent);
  const now = items.findIndex(el => el.contains(active()));
  const next = items.at(now < 0 ? (by > 0 ? items.findIndex(el => top(el) >= 48) : -1) : Math.max(0, now + by));
  if (!next) return;
  const target = next.matches("a, button, [tabindex]") ? next : $("a, button, [tabindex]", next);
  focus(target);
  next.scrollIntoView({ block: "nearest" });
}

on("keydown", event => {
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

setInterval(() => {
  for (const el of $$("time[datetime]")) {
    const minutes = (new Date - new Date(el.dateTime)) / 6e4 | 0;
    const [by, unit] = minutes < 60 ? [1, "min"] : minutes < 1440 ? [60, "h"] : [1440, "d"];
    if (minutes > 0 && /ago|now/.test(el.textContent)) el.textContent = `${minutes / by | 0} ${unit} ago`;
  }
}, 30000);

// --- messages seen in this browser, by session

const seen = { // one key per session: other tabs write too
  since: localStorage.since ||= new Date().toISOString(),
  is(id, count, active) {
    const stored = localStorage[`seen:${id}`];
    return stored ? +stored >= count : active < this.since;
  },
  mark(id, count) {
    const key = `seen:${id}`, keys = Object.keys(localStorage).filter(el => el.startsWith("seen:") && el !== key);
    if (keys.length > 2000) delete localStorage[keys.sort()[0]];
    localStorage[key] = count;
  },
};

const debounce = (act, wait) => {
  let timer;
  return () => { clearTimeout(timer); timer = setTimeout(act, wait); };
};

const whenNear = (act, rootMargin) => new IntersectionObserver(all => all.forEach(el => el.isIntersecting && act(el.target)), { rootMargin });

// --- the list

function list() {
  const box = $("[data-rows]"), form = $("[data-find]"), field = $("input[type=search]", form);

  function markUnread() {
    for (const row of $$(".row", box)) {
      row.classList.toggle("unread", !seen.is(row.dataset.id, +row.dataset.count, row.dataset.active));
    }
    const more = $("[data-more]", box);
    if (more) nearby.observe(more);
  }
  const loadMore = catching(async link => {
    const rows = await (link.rows ||= fetchRows(link.href));
    if (!link.isConnected) return;
    $(".rows", box).append(...$$(".row", rows).filter(el => !findRow(el.dataset.id)));
    link.parentNode.replaceWith($("[data-more]", rows)?.parentNode || "");
    markUnread();
  });
  const nearby = whenNear(loadMore, "1200px"), findRow = (id, within = box) => $(`.row[data-id="${CSS.escape(id)}"]`, within);
  on("storage", markUnread);

  const deleted = new Set();
  const fetchRows = async path => {
    const rows = await fetchHtml(path + (path.includes("?") ? "&" : "?") + "part=rows");
    for (const id of deleted) findRow(id, rows)?.remove(); // deleted during the request
    return rows;
  };
  const address = () => {
    const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value.trim()));
    return query.size ? `/?${query}` : "/";
  };
  let requests = 0;
  const refresh = catching(async () => {
    const number = ++requests, path = address();
    const rows = await fetchRows(path);
    if (number !== requests) return; // outdated
    history.replaceState(null, "", path);
    box.replaceChildren(rows);
    markUnread();
  });
  field.oninput = debounce(refresh, 120);
  form.onsubmit = event => { event.preventDefault(); refresh(); };

  const update = catching(async () => {
    if (field.value.trim()) return;
    const fresh = await fetchRows(address()), rows = $(".rows", box);
    if (!rows || field.value.trim()) return;
    const total = $("p.count", fresh);
    if (total) $("p.count", box)?.replaceWith(total);
    $("p.empty", box)?.remove();
    const focusedId = active()?.closest(".row")?.dataset.id;
    let position = rows.firstElementChild;
    for (const row of $$(".row", fresh)) {
      const old = findRow(row.dataset.id);
      if (old && old === position && old.innerHTML === row.innerHTML) { position = position.nextElementSibling; continue; }
      if (old) { if (old === position) position = position.nextElementSibling; old.remove(); }
      rows.insertBefore(row, position);
    }
    markUnread();
    if (focusedId) focus($("a", findRow(focusedId)));
  });
  const reload = async () => { const y = scrollY; await refresh(); restore(y); };
  let timer, reconnected; // not a debounce, which could starve
  socket.start(() => { socket.send({ type: "watch" }); if (reconnected) reload(); reconnected = true; }, event => {
    if (event.type !== "listing_changed") return;
    for (const id of event.gone) { deleted.add(id); findRow(id)?.remove(); }
    if (event.lost) reload(); else timer ||= setTimeout(() => { timer = 0; update(); }, 150);
  });

  keys.n = catching(async () => openSession(await call("POST", "/api/sessions", {})));
  $("[data-new]").onclick = keys.n;
  markUnread();

  async function restore(position) {
    for (let link; scrollTo({ top: position }), scrollY < position - 1 && (link = $("[data-more]", box));) {
      await loadMore(link);
      if (link.isConnected) return;
    }
  }
  restore(history.state?.y);
  on("pagehide", () => { history.replaceState({ y: scrollY }, ""); sessionStorage.list = location.search; });
}

// --- a session: each row of the transcript is an element keyed by its seq

function session() {
  const { id, address, at } = data, api = `/api/sessions/${escaped(id)}`, post = (path, body) => call("POST", `${api}/${path}`, body);
  const box = $("[data-transcript]"), pending = $("[data-pending]"), streamed = $("[data-streamed]");
  const thinking = $(".thinking pre", pending), jump = $("[data-new-messages]"), stop = $("[data-cancel]");
  const form = $("[data-compose]"), field = form && $("textarea", form), queue = $("[data-queue]");
  const told = `told:${id}`, draft = `draft:${id}`, seek = $("[data-seek] input"), hits = $("[data-hits]"), nav = $("[data-outline] nav");
  let head = +data.head, last = head, count = +data.count, run = data.run, ended = "end" in data;

  const atBottom = () => innerHeight + scrollY >= root.scrollHeight - 90;
  const toEnd = () => scrollTo(0, root.scrollHeight);
  const parts = (within = box) => [...within.children].filter(el => el.dataset.seq);
  const seqOf = el => +el.dataset.seq;
  const load = path => fetchHtml(`${address}/${path}`);
  const byId = name => document.getElementById(name), endOf = el => +(el.dataset.last || seqOf(el));

  const firstShown = () => parts().find(el => el.getBoundingClientRect().bottom > 150);
  const keepOpen = html => parts(html).forEach(el => {
    const old = byId(el.id), all = $$("details", el);
    if (old) $$("details", old).forEach((previous, n) => { if (previous.open && all[n]) all[n].open = true; });
  });
  // Change the page but keep the scroll position, or stay at the end.
  function anchor(change) {
    const wasAtEnd = ended && atBottom(), shown = firstShown(), oldTop = shown && top(shown), focused = active()?.closest("[data-seq]");
    change();
    const now = shown && byId(shown.id);
    if (focused?.isConnected === false) focus(byId(focused.id));
    if (wasAtEnd) toEnd();
    else if (now) scrollBy(0, top(now) - oldTop);
    afterChange();
  }
  function insert(html) {
    keepOpen(html);
    for (const el of parts(html)) {
      const old = byId(el.id), next = parts().find(other => seqOf(other) > seqOf(el));
      if (!old && next && next === parts()[0] && $("[data-older], [data-past]", box)) continue; // not loaded
      if (old?.parentNode === box) old.replaceWith(el); else box.insertBefore(el, next || $(":scope > .turn:last-child", box));
    }
    $("[data-empty]")?.remove();
  }
  let chain = Promise.resolve(); // one change at a time
  const enqueue = act => { chain = chain.then(act).catch(report); return chain; };
  const show = path => enqueue(async () => { const html = await load(path); anchor(() => insert(html)); });
  // Reload the end, or what is loaded if scrolled elsewhere.
  const refresh = () => enqueue(async () => {
    const all = parts(), high = Math.max(...(ended ? [head] : all.map(endOf)));
    if (ended || !all[0]) {
      const html = await load(`older?before=${2 ** 53 - 1}`);
      if (atBottom() || !firstShown() || html.getElementById(firstShown().id)) {
        keepOpen(html);
        anchor(() => { box.replaceChildren(html); ended = true; });
        return;
      }
    }
    const html = new DocumentFragment();
    for (let low = Math.ceil(seqOf(all[0])); low <= high; low += 400) html.append(await load(`rows?low=${low}&high=${Math.min(low + 400, high + 1)}`));
    keepOpen(html);
    anchor(() => { all.at(-1).after(html); all.forEach(el => el.remove()); });
  });

  const edges = whenNear(loadPage, "700px");
  function loadPage(link) {
    if (link.busy) return chain;
    link.busy = true;
    const before = link.dataset.older || link.dataset.past;
    return enqueue(async () => {
      const html = await load(before ? `older?before=${before}` : `newer?after=${link.dataset.newer}`);
      $(before ? "[data-newer]" : "[data-older]", html)?.parentNode.remove();
      if (!before) ended = !$("[data-newer]", html);
      anchor(() => { link.parentNode.remove(); box[before ? "prepend" : "append"](html); });
    });
  }
  const kinds = { user: ".said.user:not(.inserted)", agent: ".said.assistant", tool: ".call", error: ".call.failed, .line.failed, .line.damaged" };
  const elements = kind => $$(kinds[kind], box);
  function afterChange() {
    for (const link of $$(".turn a", box)) edges.observe(link);
    for (const chip of $$("[data-jump]")) $("[data-number]", chip).textContent = elements(chip.dataset.jump).length + ($(".turn, .ask-past", box) ? "+" : "");
    onScroll();
  }
  function onScroll() {
    jump.hidden = ended && atBottom();
    if (jump.hidden) jump.textContent = "Jump to end ↓";
    locate();
  }

  // --- navigation
  function focusOn(el, block = "start") {
    if (el.matches("details")) { el.open = true; el = $("summary", el); }
    else if (!el.hasAttribute("tabindex")) el.tabIndex = -1;
    focus(el);
    el.scrollIntoView({ block });
  }
  function goTo(seq) {
    const el = byId(`m${seq}`), text = seek.value.trim();
    if (el) {
      focusOn(el, "center");
      const spot = mark(el, text)?.getBoundingClientRect();
      if (spot && (spot.top < 150 || spot.bottom > innerHeight - 90)) scrollBy(0, spot.top - innerHeight / 2);
    }
    else visit(`${address}?at=${seq}${text ? `&find=${escaped(text)}` : ""}#m${seq}`);
  }
  on("click", catching(async event => {
    const link = event.target.closest("a");
    for (const el of $$(".menu[open]")) if (!el.contains(event.target)) el.open = false;
    if (!event.target.closest("[data-seek]")) hits.hidden = true;
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    const { past, older, newer, full, to } = link.dataset;
    if (past || older || newer || full || to || "gone" in link.dataset) event.preventDefault(); else return;
    if (past) { await loadPage(link); focusOn(parts().filter(el => seqOf(el) < past - 0.5).at(-1), "end"); }
    else if (older || newer) loadPage(link);
    else if (full) show(`messages/${full}?full=1`);
    else if (to) goTo(to);
    else { link.closest(".line").append(await fetchHtml(link.href)); link.remove(); }
  }));
  for (const chip of $$("[data-jump]")) {
    chip.onclick = event => {
      const all = elements(chip.dataset.jump), index = all.indexOf(chip.last), by = event.shiftKey ? -1 : 1;
      let next = all[index + by];
      if (index < 0) next = by > 0 ? all.find(el => top(el) > 155) : all.findLast(el => top(el) < 145);
      next ||= all.at(by > 0 ? 0 : -1);
      if (!next) return;
      next.scrollIntoView();
      chip.last = next;
      next.animate({ outline: ["3px solid", "0 solid"] }, 1500);
    };
  }
  const locate = () => {
    const now = ended && atBottom() ? Infinity : parts().findLast(el => top(el) < innerHeight / 2)?.dataset.seq ?? 0;
    const link = $$("a", nav).findLast(el => +el.dataset.to <= now), old = $("a[aria-current]", nav);
    if (link === old) return;
    if (old) old.ariaCurrent = null;
    if (!link) return;
    link.ariaCurrent = true;
    nav.parentNode.scrollTop = link.offsetTop - nav.parentNode.clientHeight / 2;
  };
  on("scroll", debounce(onScroll, 60), { passive: true });
  jump.onclick = () => ended ? toEnd() : visit(address);
  const outline = catching(async () => { nav.replaceChildren(await load("outline")); locate(); });
  const outlineSoon = debounce(outline, 800);
  $("[data-outline]").open = matchMedia("(min-width: 62rem)").matches;

  // --- find: the server searches the whole session
  function mark(within, text) {
    if (!window.Highlight) return;
    const ranges = [], walk = document.createTreeWalker(within, NodeFilter.SHOW_TEXT), pattern = new RegExp(text.replace(/\W/g, "\\$&"), "gi");
    while (text && walk.nextNode() && ranges.length < 500) {
      for (const { index } of walk.currentNode.data.matchAll(pattern)) {
        const range = new Range();
        range.setStart(walk.currentNode, index);
        range.setEnd(walk.currentNode, index + text.length);
        ranges.push(range);
      }
    }
    CSS.highlights.set("found", new Highlight(...ranges));
    return ranges[0];
  }
  let shown, search;
  const find = () => {
    const text = seek.value.trim();
    return search = text === shown ? search : runFind(shown = text);
  };
  const runFind = catching(async text => {
    const html = text && await load(`find?q=${escaped(text)}&at=${at}`);
    if (text !== seek.value.trim()) return;
    hits.replaceChildren(html);
    hits.hidden = !text || active() !== seek;
    mark(box, text);
  });
  const stepHit = by => {
    const all = $$("a", hits), now = all.findIndex(el => el.ariaCurrent);
    const next = all[(Math.max(now, -(by > 0)) + by + all.length) % all.length];
    if (!next) return;
    if (all[now]) all[now].ariaCurrent = null;
    next.ariaCurrent = true;
    hits.hidden = true;
    goTo(next.dataset.to);
  };
  seek.oninput = debounce(find, 200);
  seek.onfocus = () => { hits.hidden = !seek.value.trim(); };
  seek.form.onsubmit = async event => { event.preventDefault(); await find(); stepHit(1); };

  // --- events
  let calls = 0;
  const loadQueue = catching(async () => {
    const number = ++calls, html = await load("queue");
    if (number !== calls) return; // outdated
    setRun($("[data-running]", html).dataset.running);
    anchor(() => queue.replaceChildren(html));
  });
  // Returns a function that removes the text streamed so far.
  function streamRemover() {
    draw();
    const old = [...streamed.childNodes, ...thinking.childNodes];
    return () => old.forEach(el => el.remove());
  }
  function setRun(now) {
    if (now !== run || !now) streamRemover()();
    run = now;
    anchor(() => { pending.hidden = !run; });
    if (stop) stop.hidden = !run;
  }
  const setStatus = text => write("status", text);
  let buffer = ["", ""], frame = 0;
  function draw() {
    const wasAtEnd = ended && atBottom();
    frame = 0;
    streamed.append(buffer[0]);
    thinking.append(buffer[1]);
    buffer = ["", ""];
    if (wasAtEnd) toEnd();
  }
  function stream(text, channel) {
    buffer[channel] += text;
    frame ||= requestAnimationFrame(draw);
  }
  const handlers = {
    subscribed(event) { if (event.seq > head) refresh(); head = Math.max(head, event.seq); loadQueue(); },
    message({ seq, message }) {
      last = Math.max(last, seq);
      head = Math.max(head, seq);
      shown = 0; // search again
      seen.mark(id, ++count);
      write("messages", `${format(count)} message${count > 1 ? "s" : ""}`);
      if (message.role === "user") outlineSoon();
      if (!ended || !atBottom()) jump.textContent = "New messages ↓";
      const clear = message.role === "assistant" ? streamRemover() : () => {};
      if (!ended) { clear(); return; }
      enqueue(async () => {
        const html = await load(`messages/${seq}`);
        anchor(() => { clear(); insert(html); });
        if (message.role === "user") loadQueue();
      });
    },
    run_start({ runId }) { setRun(runId); setStatus("working"); loadQueue(); },
    stream_delta({ text }) { stream(text, 0); },
    thinking_delta({ text }) { stream(text, 1); },
    tool_start({ toolName }) { setStatus(`running ${toolName}`); },
    tool_result() { setStatus("working"); },
    message_complete({ content }) { write("aloud", `Agent: ${content.slice(0, 300)}`); loadQueue(); },
    status({ message }) { (run ? setStatus : toast)(message); },
    error(event) {
      if (event.code !== "RunCancelledError") warn(event.message + (event.hint ? `: ${event.hint}` : ""));
      if (ended) show(`newer?after=${last}`);
      loadQueue();
    },
    queued: loadQueue,
    session_renamed({ name }) { write("title", name); document.title = `${name} · everlog`; },
    session_changed({ change, seq, seqs }) {
      head = Math.max(head, seq);
      if (change === "deleted") { delete localStorage[draft]; warn("This session was deleted"); }
      else if (change === "rewound") { refresh(); outlineSoon(); }
      else {
        const covered = el => seqs.some(n => seqOf(el) <= n && n <= endOf(el));
        const old = parts().filter(covered), ends = old.flatMap(el => [seqOf(el), endOf(el)]);
        if (old.length) show(`rows?low=${Math.min(...seqs, ...ends)}&high=${Math.max(...seqs, ...ends) + 1}`);
        outlineSoon();
      }
    },
    compact_start({ messages }) { toast(`Summarising ${messages} messages`); },
    compact_end({ tokensFreed }) { if (tokensFreed) toast(`Compacted: ${format(tokensFreed)} tokens saved`); refresh(); },
    compact_failed({ error }) { warn(`Not compacted: ${error}`); },
    token_warning({ percent }) { toast(`The context is ${percent} % full`); },
  };
  socket.start(() => socket.send({ type: "subscribe", sessionId: id, after: last }), event => {
    if (event.sessionId === id) handlers[event.type]?.(event);
    else if (event.type === "error" && !event.sessionId) warn(event.message);
  });

  // --- sending messages
  if (form) {
    let sent = Promise.resolve();
    const grow = () => {
      const wasAtEnd = ended && atBottom();
      field.style.height = "auto";
      field.style.height = `${field.scrollHeight + 2}px`;
      if (wasAtEnd) toEnd();
    };
    field.value = localStorage[draft] || "";
    field.oninput = () => { grow(); localStorage[draft] = field.value; };
    field.onkeydown = event => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); form.requestSubmit(); }
      if (event.key === "Escape" && run && !field.value) { event.stopPropagation(); stop.click(); }
    };
    form.onsubmit = catching(async event => {
      event.preventDefault();
      const content = field.value, fill = text => { field.value = text; grow(); };
      if (!content.trim()) return;
      fill("");
      sent = sent.catch(() => {}).then(() => post("messages?wait=false", { content }));
      try { await sent; } catch (error) { fill(`${field.value}\n${content}`.trim()); throw error; }
      if (!field.value) delete localStorage[draft];
      if (ended) toEnd(); else visit(address);
    });
    stop.onclick = catching(() => post("cancel", { runId: run }));
    queue.onclick = catching(async ({ target }) => {
      if (!target.dataset.withdraw) return;
      const { cancelled } = await post("cancel", { runId: target.dataset.withdraw });
      if (!cancelled) toast("Its turn has already started");
      loadQueue();
    });
    grow();
  }

  // --- actions
  const actions = {
    async link(seq) { await navigator.clipboard.writeText(`${location.origin}${address}?at=${seq}#m${seq}`); toast("Link copied"); },
    async command() { await navigator.clipboard.writeText($("[data-command]").textContent); toast("Command copied"); },
    continue() { sessionStorage[told] = data.told = 1; afterChange(); field.focus(); },
    async fork(seq, through) { openSession(await post("fork", { at: through })); },
    async rewind(seq, through) {
      const text = "Later messages leave the conversation but stay in the log.";
      if (await ask("Rewind to here?", { text, yes: "Rewind", danger: true })) await post("rewind", { toSeq: through });
    },
    async hide(seq) {
      await call("DELETE", `${api}/messages/${seq}`);
      toast("Message deleted", { action: "Undo", act: catching(() => actions.restore(seq)) });
    },
    restore: seq => post(`messages/${seq}/restore`),
    async rename() {
      const name = await ask("Rename", { label: "Title", yes: "Rename", value: $("[data-title]").textContent });
      if (name?.trim()) await call("PATCH", api, { name: name.trim() });
    },
    async remove() {
      if (await ask("Delete this session?", { text: "This cannot be undone.", yes: "Delete", danger: true })) {
        await call("DELETE", api);
        visit("/");
      }
    },
    async compact() {
      const plan = await post("compact", { dryRun: true }), dialog = $("[data-compact]");
      if (!plan.record) { toast(`Nothing to compact: ${plan.reason}`); return; }
      const { firstKeptSeq, summary } = plan.record, { messages = 0, tokens = 0, tokensFreed = 0 } = plan;
      write("cut", `${messages} messages before message ${firstKeptSeq} would be summarised: from ${format(tokens)} to about ${format(tokens - tokensFreed)} tokens.`);
      write("summary", summary);
      dialog.onclose = catching(async () => {
        if (dialog.returnValue !== "yes") return;
        const result = await post("compact", { focus: $("input", dialog).value });
        if (!result.compacted) warn(`Not compacted: ${result.reason}`);
      });
      dialog.returnValue = "no";
      dialog.showModal();
    },
  };
  const closeMenu = menu => { if (menu) { menu.open = false; focus($("summary", menu)); } return menu; };
  on("click", catching(async ({ target }) => {
    const button = target.closest("[data-act]");
    if (!button) return;
    const part = button.closest("[data-seq]"), seq = +part?.dataset.seq;
    const through = Math.max(seq, ...(part ? $$(".call[id]", part).map(el => +el.id.slice(1)) : []));
    closeMenu(button.closest(".menu"));
    await actions[button.dataset.act](seq, through);
  }));

  Object.assign(keys, {
    g: () => ($("[data-older], [data-past]", box) ? visit(`${address}?at=1#m1`) : scrollTo(0, 0)),
    c: () => field?.focus(), n: () => stepHit(1), N: () => stepHit(-1), G: () => (ended ? toEnd() : visit(address)),
    e: () => { const all = $$(".call", box), to = !all.some(el => el.open); anchor(() => all.forEach(el => { el.open = to; })); },
    Escape: () => { if (closeMenu($(".menu[open]"))) return; if (seek.value) { seek.value = ""; find(); } else visit(`/${sessionStorage.list || ""}`); },
  });

  history.scrollRestoration = "manual";
  if (sessionStorage[told]) data.told = 1;
  seek.value = new URLSearchParams(location.search).get("find") || "";
  afterChange();
  const target = at > 0 && (byId(`m${at}`) || parts().findLast(el => seqOf(el) <= at));
  const start = () => { if (target) focusOn(target, "center"); else if (ended) toEnd(); };
  start();
  on("load", start, { once: true }); // after the browser's own scrolling
  if (seek.value) find();
  pending.hidden = !run;
  seen.mark(id, count);
  outline();
}

if (view === "list") list();
if (view === "session") session();
