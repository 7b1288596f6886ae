// The stream of snapshots: server-sent events read by fetch, since EventSource cannot send a token.
//
//     connecting -> live -> lost -> (pause) -> connecting …          any -> refused (a token is needed)

import { Refused, request } from "./api.js";

const SILENCE = 6000; // ms without a byte after which a stream that sends every second is dead
const PAUSES = [500, 1000, 2000, 4000]; // ms between attempts

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Yields {event, data} of a text/event-stream body. `alive()` is called for every piece that arrives. */
async function* eventsOf(response, alive) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    alive();
    buffer += value.replaceAll("\r", "");
    let end;
    while ((end = buffer.indexOf("\n\n")) >= 0) {
      const block = buffer.slice(0, end);
      buffer = buffer.slice(end + 2);
      let event = "message";
      const data = [];
      for (const line of block.split("\n")) {
        if (line.startsWith("event:")) event = line.slice(6).trim();
        else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
      }
      if (data.length) yield { event, data: data.join("\n") };
    }
  }
}

/**
 * Follows the controller until the page is left.
 * handlers: connected() -> Promise, snapshot(object), lost(reason), refused(Refused) -> Promise (resolved: try again).
 */
export async function follow(handlers) {
  for (let attempt = 0; ; ) {
    const abort = new AbortController();
    let timer = setTimeout(() => abort.abort(), SILENCE);
    const alive = () => {
      clearTimeout(timer);
      timer = setTimeout(() => abort.abort(), SILENCE);
    };
    let reason = "the connection ended";
    try {
      const response = await request("v1/live", { signal: abort.signal });
      alive();
      await handlers.connected();
      for await (const { event, data } of eventsOf(response, alive)) {
        if (event !== "snapshot" && event !== "message") continue;
        attempt = 0;
        handlers.snapshot(JSON.parse(data));
      }
    } catch (error) {
      if (error instanceof Refused && (error.status === 401 || error.status === 403)) {
        clearTimeout(timer);
        await handlers.refused(error);
        continue;
      }
      if (abort.signal.aborted) reason = `silent for ${SILENCE / 1000} s`;
      else if (error instanceof Refused) reason = error.message;
      else if (error instanceof TypeError) reason = "it does not answer";
      else {
        console.error(error);
        reason = error.message;
      }
    } finally {
      clearTimeout(timer);
      abort.abort(); // whatever is still open
    }
    handlers.lost(reason);
    await sleep(PAUSES[Math.min(attempt, PAUSES.length - 1)]);
    attempt += 1;
  }
}
