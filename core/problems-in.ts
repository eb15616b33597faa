import { z } from 'zod';

/** Describes where a value differs from a schema, a problem a line. A field that is missing is not called `undefined`. */
export function problemsIn(error: z.ZodError): string {
  return z.prettifyError(error).replaceAll('received undefined', 'found none');
}
