import { z } from 'zod';

/** Describes how a value differs from a schema, a problem a line. A missing field is not called `undefined`. */
export function problemsIn(error: z.ZodError): string {
  return z.prettifyError(error).replaceAll('received undefined', 'found none');
}
