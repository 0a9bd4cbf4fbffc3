// Chromium for the tests. It is started with {executable, args} as its argument, reads one JSON action a
// line and answers each with one line: what is then on the page, and what has happened since the action
// began. An action that fails answers {failed}. Pages share nothing, like browsers of different people,
// but for those of one context.
import { chromium } from "playwright-core";
import { createInterface } from "node:readline";

const patience = 15_000;
const { executable, args } = JSON.parse(process.argv[2]);
const browser = await chromium.launch({ executablePath: executable, args, timeout: 60_000 });
const contexts = new Map();
const pages = new Map();

// Every page notes its trips (requests for a document) and what the browser complains about.
async function newPage({ id, context, width, height, phone, dark, script, headers }) {
  if (!contexts.has(context)) {
    contexts.set(context, await browser.newContext({
      viewport: { width, height }, isMobile: phone, hasTouch: phone, colorScheme: dark ? "dark" : "light",
      javaScriptEnabled: script, extraHTTPHeaders: headers ?? {}, ignoreHTTPSErrors: true, locale: "en-GB",
    }));
  }
  const page = await contexts.get(context).newPage();
  page.setDefaultTimeout(patience);
  const log = { trips: [], complaints: [] };
  const trips = new Map();
  page.on("console", (m) => m.type() === "error" && log.complaints.push(m.text()));
  page.on("pageerror", (e) => log.complaints.push(String(e)));
  page.on("request", (r) => {
    if (!r.isNavigationRequest()) return;
    trips.set(r, { url: r.url(), status: 0, failure: "" });
    log.trips.push(trips.get(r));
  });
  page.on("response", (r) => trips.has(r.request()) && (trips.get(r.request()).status = r.status()));
  page.on("requestfailed", (r) => trips.has(r) && (trips.get(r).failure = r.failure()?.errorText ?? "failed"));
  pages.set(id, { page, log });
}

// settled ends when a document has come or will not: a trip that is aborted went to an app outside of
// the browser, or was forbidden, of which the browser complains a moment later.
function settled(page) {
  return new Promise((resolve, reject) => {
    const late = setTimeout(() => done(reject, new Error("the page went nowhere")), patience);
    const loaded = () => done(resolve);
    const failed = (r) => r.isNavigationRequest() && setTimeout(() => done(resolve), 500);
    function done(end, value) {
      clearTimeout(late);
      page.off("load", loaded);
      page.off("requestfailed", failed);
      end(value);
    }
    page.on("load", loaded);
    page.on("requestfailed", failed);
  });
}

// press finds a button or link by what is written on it.
const press = (page, name) => page.getByRole("button", { name, exact: true }).or(page.getByRole("link", { name, exact: true })).click();

const actions = {
  page: async (_, action) => newPage(action),
  open: (page, { url }) => page.goto(url, { waitUntil: "load" }),
  press: (page, { name }) => Promise.all([settled(page), press(page, name)]),
  fill: (page, { label, value }) => page.getByLabel(label, { exact: true }).fill(value),
  tick: (page, { label, on }) => page.getByRole("checkbox", { name: label }).setChecked(on),
  key: (page, { key }) => Promise.all([settled(page), page.keyboard.press(key)]),
  shot: (page, { path }) => page.screenshot({ path, fullPage: true, animations: "disabled" }),
};

// measure runs in the page, also where scripts of the page may not.
function measure() {
  const seen = (e) => e.getClientRects().length > 0;
  const name = (e) => (e.labels?.[0]?.innerText ?? e.innerText ?? e.name).trim().split("\n")[0].trim();
  const targets = [...document.querySelectorAll("button, a, label:has(input), input:not([type=hidden]):not([type=checkbox])")].filter(seen);
  return {
    title: document.title,
    text: document.body?.innerText ?? "",
    ticked: Object.fromEntries([...document.querySelectorAll("input[type=checkbox]")].map((e) => [e.value, e.checked])),
    asksPassword: document.querySelector("input[type=password]") !== null,
    focus: document.activeElement?.id ?? "",
    scripts: document.querySelectorAll("script, [onclick], [onsubmit], [onload]").length,
    tooWide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    small: targets.filter((e) => e.getBoundingClientRect().height < 44).map(name),
    smallest: Math.min(99, ...[...document.querySelectorAll("body *")].filter((e) => seen(e) && [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())).map((e) => parseFloat(getComputedStyle(e).fontSize))),
  };
}

for await (const line of createInterface({ input: process.stdin })) {
  const action = JSON.parse(line);
  let answer;
  try {
    const before = pages.get(action.id);
    if (before) before.log.trips.length = before.log.complaints.length = 0;
    await actions[action.do](before?.page, action);
    const { page, log } = pages.get(action.id);
    answer = { url: page.url(), ...log, ...(await page.evaluate(measure)) };
  } catch (error) {
    answer = { failed: String(error) };
  }
  console.log(JSON.stringify(answer));
}
await browser.close();
