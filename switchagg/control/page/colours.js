// One colour a job, the same in the slot map and in the list for as long as the page is open.

const COLOURS = 8; // as many as style.css names
const given = new Map();

export const jobKey = (tenant, name) => JSON.stringify([tenant ?? null, name]);

/** The class of a job's colour; for another tenant's job, the class of strangers. */
export function colour(tenant, name) {
  if (name === null || name === undefined) return "c-other";
  const key = jobKey(tenant, name);
  if (!given.has(key)) given.set(key, given.size % COLOURS);
  return `c${given.get(key)}`;
}
