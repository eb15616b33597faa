import type { z } from 'zod';
import { problemsIn } from '../core/problems-in.ts';
import { shortened } from '../core/steering.ts';

/** More of a server's words is not repeated. */
const wordsMax = 300;
const problemsMax = 500;

/** Describes how an answer differs from the expected one, with the server's own words if it reports an error. */
export function unlike(error: z.ZodError, answer?: unknown): string {
  const problems = problemsIn(error).slice(0, problemsMax);
  const words = errorIn(answer);
  return words === null ? problems : `${problems}; the server says: ${words}`;
}

/** The server's words in a JSON answer that reports an error, whatever its status; null = it reports none. */
export function errorIn(answer: unknown): string | null {
  if (typeof answer !== 'object' || answer === null || Array.isArray(answer)) return null;
  const { error } = answer as { readonly error?: unknown };
  if (error === undefined || error === null || error === false) return null;
  const { message } = error as { readonly message?: unknown };
  const said = typeof message === 'string' ? message : typeof error === 'string' ? error : written(error);
  return shortened(said.trim() === '' ? 'an error without words' : said, wordsMax);
}

/** A value that is nested too deeply to be written has no words. */
function written(value: unknown): string {
  try {
    return JSON.stringify(value) ?? '';
  } catch {
    return '';
  }
}
