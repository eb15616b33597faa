import { z } from 'zod';
import { RatchetError } from '../../core/errors.ts';
import { looksSecret } from '../../core/spec/secrets.ts';

/** Checks an environment's arguments, `[[env]] args = { … }`, and fills in its defaults. */
export function parseArgs<T extends z.ZodType>(environment: string, schema: T, args: unknown): z.infer<T> {
  const parsed = schema.safeParse(args, { reportInput: true });
  if (parsed.success) return parsed.data;
  const lines = parsed.error.issues.map((issue) => {
    const what = issue.path.length > 0 ? `args.${issue.path.join('.')}` : 'args';
    const input = JSON.stringify(issue.input) ?? 'nothing';
    const received = issue.code === 'unrecognized_keys' || looksSecret(input) ? '' : `, received ${input}`;
    return `  ${what}: ${issue.message}${received}`;
  });
  const known = schema instanceof z.ZodObject ? `\nIts arguments are: ${Object.keys(schema.shape).join(', ')}.` : '';
  throw new RatchetError(
    'ConfigInvalid',
    `Environment "${environment}" cannot work with its arguments:\n${lines.join('\n')}${known}`,
    { cause: parsed.error },
  );
}
