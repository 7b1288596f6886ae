// Number formats. Every function takes null for "not known" and returns "–".

const NONE = "–";
const known = (value) => typeof value === "number" && Number.isFinite(value);

function significant(value, digits = 3) {
  if (value === 0) return "0";
  const places = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value))));
  return value.toFixed(Math.min(places, 6));
}

function scaled(value, units, step) {
  let unit = 0;
  let rest = value;
  // 999.6 would be rounded to "1000".
  while (unit < units.length - 1 && Math.abs(rest) >= step * 0.9995) {
    rest /= step;
    unit += 1;
  }
  return [rest, units[unit]];
}

/** A format for values that may not be known. */
const orNone = (format) => (value) => (known(value) ? format(value) : NONE);

export const throughput = orNone((gigabytes) => {
  if (gigabytes === 0) return "0 B/s";
  const [value, unit] = scaled(gigabytes * 1e9, ["B/s", "kB/s", "MB/s", "GB/s", "TB/s"], 1000);
  return `${significant(value)} ${unit}`;
});

export const percent = orNone((share) => {
  const value = share * 100;
  if (value !== 0 && Math.abs(value) < 0.01) return "< 0.01 %";
  return `${value >= 99.95 ? "100" : value === 0 ? "0" : significant(value, value < 1 ? 2 : 3)} %`;
});

export const count = orNone((value) => Math.round(value).toLocaleString("en-US"));

export const short = orNone((value) => {
  if (Math.abs(value) < 1000) return significant(value);
  const [rest, unit] = scaled(value, ["", "k", "M", "G", "T"], 1000);
  return `${significant(rest)} ${unit}`;
});

export const bytes = orNone((value) => {
  const [rest, unit] = scaled(value, ["B", "KiB", "MiB", "GiB", "TiB"], 1024);
  return `${unit === "B" ? rest : significant(rest)} ${unit}`;
});

export const duration = orNone((value) => {
  const whole = Math.max(0, Math.round(value));
  if (whole < 60) return `${whole} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return whole % 60 && minutes < 10 ? `${minutes} min ${whole % 60} s` : `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
});

export const seconds = orNone((value) => (value < 10 ? `${Math.max(0, value).toFixed(1)} s` : duration(value)));

export const microseconds = orNone((value) =>
  value < 1000 ? `${significant(value)} µs` : `${significant(value / 1000)} ms`,
);

export const clock = (unix) => new Date(unix * 1000).toLocaleTimeString("en-GB");

export function moment(unix) {
  const date = new Date(unix * 1000);
  const day = date.toDateString() === new Date().toDateString() ? "" : `${date.toLocaleDateString("en-CA")} `;
  return day + clock(unix);
}

/** [0, 1, 2, 5] as "0–2, 5". */
export function ranks(list) {
  const parts = [];
  const sorted = [...list].sort((a, b) => a - b);
  for (let i = 0; i < sorted.length; ) {
    let last = i;
    while (last + 1 < sorted.length && sorted[last + 1] === sorted[last] + 1) last += 1;
    parts.push(last - i < 2 ? sorted.slice(i, last + 1).join(", ") : `${sorted[i]}–${sorted[last]}`);
    i = last + 1;
  }
  return parts.join(", ");
}
