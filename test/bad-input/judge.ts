import type { Outcome } from './cli-process.ts';

export type Fault = 'unclear' | 'traces' | 'hangs' | 'silent';

/**
 * Characters that a terminal would obey: C0 and C1 except line breaks and tabs, and those that turn the direction of
 * writing.
 */
const steering = /[^\P{Cc}\n\t]|[\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/u;
const trace = /^\s+at .*:\d+|\b(?:TypeError|RangeError|ReferenceError|ZodError|AssertionError)\b|UnhandledPromise/m;
/** Signs of an error that was not foreseen. */
const slips = /\[object |\bundefined\b|: NaN\b|\b(?:EISDIR|ENXIO|ELOOP|EINVAL|ENOTDIR): /;
/** A screen, and a page beyond it. */
const refusalCharsMax = 20_000;

/**
 * Fault of the answer to bad input; null without one. `names`: a refusal mentions one of these as the place.
 * `mustRefuse`: the input is known to be wrong, so a normal end has swallowed the error. `wanted`: a refusal matches
 * each of these.
 */
export function faultIn(
  outcome: Outcome,
  names: readonly string[] = [],
  mustRefuse = false,
  wanted: readonly RegExp[] = [],
): { fault: Fault; why: string } | null {
  if (outcome === null) return { fault: 'hangs', why: 'it did not end' };
  const { code, text, chars, isWrong = false } = outcome;
  if (trace.test(text)) return { fault: 'traces', why: excerpt(text, trace) };
  const unclear = (why: string) => ({ fault: 'unclear', why }) as const;
  if (steering.test(text)) return unclear(`control characters: ${JSON.stringify(excerpt(text, steering))}`);
  if (slips.test(text)) return unclear(excerpt(text, slips));
  if (code === 0 && (mustRefuse || isWrong))
    return { fault: 'silent', why: `it is not refused: ${text.trim().slice(0, 200)}` };
  if (code === 0) return null;
  if (text.trim() === '') return unclear('it says nothing');
  if (chars > refusalCharsMax) return unclear(`${chars} characters`);
  if (names.length > 0 && !names.some((name) => text.includes(name)))
    return unclear(`it does not say where: ${text.trim()}`);
  const missing = wanted.find((one) => !one.test(text));
  return missing ? unclear(`it lacks ${missing.source}: ${text.trim()}`) : null;
}

function excerpt(text: string, about: RegExp): string {
  const at = text.search(about);
  return text.slice(Math.max(0, at - 150), at + 250).trim();
}
