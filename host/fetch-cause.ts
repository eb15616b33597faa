import { RatchetError } from '../core/errors.ts';

/** `fetch failed` hides the reason in its cause: the system's code if there is one, `ECONNREFUSED`. */
export function causeOf(error: unknown): string {
  if (error instanceof RatchetError) return error.message;
  const { cause, name } = error as { cause?: { code?: string; message?: string }; name?: string };
  return cause?.code ?? cause?.message ?? name ?? String(error);
}
