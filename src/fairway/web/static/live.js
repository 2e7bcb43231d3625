// Listens to what changed and tells the page's parts: `fw:nodes`, `fw:jobs`, `fw:policy`, `fw:cost` on the body.
// One stream a visible page. A hidden one lets go: browsers allow six connections to a host, all tabs together.
(() => {
  const TOPICS = ["nodes", "jobs", "policy", "cost"];
  const LEAST = 3000; // between two tellings of one topic
  const LAG = 12; // seconds: what changed may be noticed so much later
  const GO_AFTER = 5000; // hidden for so long: the stream closes
  const RETRY = [1000, 30000];

  const state = document.getElementById("live-state");
  if (!state || !window.EventSource) return; // nobody is signed in

  const told = {}; // when each topic was last told
  const waiting = {}; // timers of those that will be
  let source = null;
  let delay = RETRY[0];
  let lostAt = null; // since when there is no stream; null: there is, or there never was
  let retry = 0;
  let leaving = 0;
  let over = false;

  const show = (word, title) => {
    state.textContent = word;
    state.title = title;
    state.dataset.state = word ? word.replace("…", "") : "";
  };

  const tell = (topic) => {
    if (waiting[topic]) return;
    const rest = Math.max(0, LEAST - (Date.now() - (told[topic] || 0)));
    // Two hundred pages that hear the same word must not all ask in the same moment.
    waiting[topic] = setTimeout(() => {
      delete waiting[topic];
      if (document.hidden) return; // it catches up when somebody looks
      told[topic] = Date.now();
      document.body.dispatchEvent(new CustomEvent(`fw:${topic}`, { bubbles: true }));
    }, rest + Math.random() * 1000);
  };

  const hello = (quiet) => {
    // What changed since this page was made, or since the last stream ended, was not told.
    const missed = (lostAt === null ? performance.now() : performance.now() - lostAt) / 1000 + LAG;
    const all = lostAt !== null && missed > 60;
    for (const topic of TOPICS) if (all || !(quiet[topic] > missed)) tell(topic);
    lostAt = null;
    delay = RETRY[0];
    show("live", "This page follows what changes");
  };

  const close = () => {
    clearTimeout(retry);
    if (source) source.close();
    if (source && lostAt === null) lostAt = performance.now();
    source = null;
  };

  const open = () => {
    if (source || over || document.hidden) return;
    source = new EventSource("/live");
    source.addEventListener("hello", (event) => hello(JSON.parse(event.data)));
    source.addEventListener("changed", (event) => JSON.parse(event.data).forEach(tell));
    source.addEventListener("ended", (event) => {
      close();
      if (JSON.parse(event.data) === "signed-out") {
        over = true;
        show("signed out", "Your session ended: load the page again to sign in");
      } else again();
    });
    source.onerror = () => {
      close(); // our own patience: browsers give up for good on some answers, and hurry after others
      again();
    };
  };

  const again = () => {
    if (lostAt === null) lostAt = performance.now();
    show("reconnecting…", "The server does not answer; this page shows what it last knew");
    retry = setTimeout(open, delay * (0.7 + Math.random() * 0.6));
    delay = Math.min(delay * 2, RETRY[1]);
  };

  document.addEventListener("visibilitychange", () => {
    clearTimeout(leaving);
    if (document.hidden) {
      leaving = setTimeout(() => { close(); if (!over) show("", ""); }, GO_AFTER);
    } else {
      delay = RETRY[0];
      clearTimeout(retry);
      open();
    }
  });
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", (event) => { if (event.persisted) open(); });
  open();
})();
