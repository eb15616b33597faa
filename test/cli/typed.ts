/** Commands as they are typed, for tests of what they print: one process does those of a file. See `bad-input/cli-process.ts`. */
import assert from 'node:assert/strict';
import { after } from 'node:test';
import { CliProcess } from '../bad-input/cli-process.ts';

export interface Printed {
  readonly code: number;
  readonly out: string;
  readonly err: string;
}

/** A command that takes longer hangs. */
const boundMs = 120_000;

export type Type = (
  folder: string,
  args: readonly string[],
  env?: Readonly<Record<string, string>>,
) => Promise<Printed>;

/** The process ends behind the last test of the file. */
export function openCommands(): Type {
  const cli = new CliProcess();
  after(() => cli.stop());
  return async (folder, args, env) => {
    const outcome = await cli.run(folder, args, boundMs, env);
    assert.ok(outcome !== null, `${args.join(' ')} does not end`);
    const { code, text, out = '', err = text } = outcome;
    return { code, out, err };
  };
}
