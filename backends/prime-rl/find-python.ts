import { stat } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import { trustedInterpreter } from '../../host/trusted-files.ts';
import { pythonIn } from '../python/interpreter.ts';

/** The Python of prime-rl’s trainer, which has to be granted to be run. */
export async function trustedPrimeRlPython(program: string | null, projectFolder: string): Promise<string> {
  return trustedInterpreter(await findPrimeRlPython(program, projectFolder), 'The Python of prime-rl');
}

/** What is typed to have prime-rl on a machine, as its own documents say. */
export const installingPrimeRl: readonly string[] = [
  'git clone https://github.com/PrimeIntellect-ai/prime-rl.git',
  'cd prime-rl',
  'git submodule update --init -- deps/verifiers deps/renderers deps/prime-envs deps/pydantic-config',
  'uv sync --all-extras',
];

/** The Python of prime-rl’s trainer: what a run names, or that of the environment in the checkout that it names. */
export async function findPrimeRlPython(program: string | null, projectFolder: string): Promise<string> {
  if (program === null)
    throw new RatchetError(
      'ConfigInvalid',
      '[trainer] kind = "prime-rl" needs program: the checkout of prime-rl, or its Python. `npx ratchet-rl engine install prime-rl` says how to make one.',
    );
  const named = path.isAbsolute(program) || !program.includes('/') ? program : path.resolve(projectFolder, program);
  const isFolder = await stat(named).then(
    (found) => found.isDirectory(),
    () => false, // a name is looked for on the PATH
  );
  return isFolder ? pythonIn(path.join(named, '.venv')) : named;
}
