// Requests to the controller that served this page, with the tenant's token where one is needed.

const KEY = "switchagg.token";

let memory = null; // where the browser keeps no storage for us

export function token() {
  try {
    return sessionStorage.getItem(KEY) ?? memory;
  } catch {
    return memory;
  }
}

export function setToken(value) {
  memory = value;
  try {
    if (value === null) sessionStorage.removeItem(KEY);
    else sessionStorage.setItem(KEY, value);
  } catch {
    // `memory` has it until the page is left.
  }
}

/** An error answer of the controller. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Sends a request; returns the response once its status is known. Throws `Refused`, or what fetch throws. */
export async function request(path, { method = "GET", signal } = {}) {
  const headers = {};
  if (token() !== null) headers.Authorization = `Bearer ${token()}`;
  const response = await fetch(path, { method, headers, signal, cache: "no-store" });
  if (response.ok) return response;
  let message = `${response.status} ${response.statusText}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // Not our controller's words: a proxy's, perhaps. The status says enough.
  }
  throw new Refused(response.status, message);
}

export const getJson = async (path, options) => (await request(path, options)).json();

/** The path of a job, of one generation where its id is known. */
export function jobPath(job, rest = "") {
  const query = new URLSearchParams();
  if (job.id !== null && job.id !== undefined) query.set("id", job.id);
  if (job.tenant) query.set("tenant", job.tenant);
  const text = query.toString();
  return `v1/jobs/${encodeURIComponent(job.name)}${rest}${text ? `?${text}` : ""}`;
}
