import type { RunSpec } from '../../config/run-spec.ts';
import { RatchetError } from '../../core/errors.ts';
import { listRunNames } from '../../runs/list-runs.ts';
import { differencesBetween } from '../../runs/run-identity.ts';
import { newestSpec } from '../../runs/forms/stored-spec.ts';
import { present } from '../../core/present.ts';
import { trainAgain, type TypedCommand } from '../typed/typed-command.ts';

/** The suffix that `--fresh` appends to a name. */
const freshEnding = /^-[0-9a-f]{4}$/;

type Likeness = 'equal' | 'may continue' | 'other';

/**
 * Run of a file without a typed name. It is the run with the file's name, unless that has other settings and a run that
 * `--fresh` began under a new name has these. Refuses several such runs, with a command for each.
 */
export async function runOfFile(
  spec: RunSpec,
  command: Omit<TypedCommand, 'name' | 'dialect'> & { readonly dialect?: string | undefined },
): Promise<{ readonly run: string; readonly says: string | null }> {
  const { name, store } = spec;
  const { file, over = [], dialect, overrides } = command;
  const again = (run: string): string => trainAgain({ file, over, overrides, name: run, ...present({ dialect }) });
  const unchanged = { run: name, says: null };
  const isSibling = (other: string): boolean => other.startsWith(name) && freshEnding.test(other.slice(name.length));
  const names = await listRunNames(store.uri, (other) => other === name || isSibling(other));
  const siblings = names.filter(isSibling);
  if (siblings.length === 0 || !names.includes(name)) return unchanged;
  const likeness = await likenessOf(spec, name);
  if (likeness === 'equal') return unchanged;
  const others = await Promise.all(siblings.map(async (run) => ({ run, is: await likenessOf(spec, run) })));
  const equal = others.filter(({ is }) => is === 'equal');
  const meant = equal.length > 0 || likeness === 'may continue' ? equal : others.filter(({ is }) => is !== 'other');
  const [first, ...further] = meant;
  if (first === undefined) return unchanged;
  if (further.length === 0) {
    const says = `the run is ${first.run}, which --fresh began with these settings; ${name} has others (to continue that: ${again(name)})`;
    return { run: first.run, says };
  }
  throw new RatchetError(
    'ConfigInvalid',
    [
      `The run ${name} has other settings than the file has now, and several runs have these. Type the one that you mean:`,
      ...[...meant.map(({ run }) => run), name].map((run) => `  ${again(run)}`),
    ].join('\n'),
  );
}

async function likenessOf(spec: RunSpec, name: string): Promise<Likeness> {
  let before: RunSpec;
  try {
    before = await newestSpec({ name, store: spec.store.uri });
  } catch (error) {
    if (!(error instanceof RatchetError)) throw error;
    return 'other'; // reported when it is opened
  }
  const differences = differencesBetween(spec, before).filter(({ isOfProcesses }) => !isOfProcesses);
  if (differences.length === 0) return 'equal';
  return differences.some(({ staysForLife }) => staysForLife) ? 'other' : 'may continue';
}
