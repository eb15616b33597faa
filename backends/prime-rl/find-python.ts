import { stat } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import { trustedInterpreter } from '../../host/trusted-files.ts';
import { pythonIn } from '../python/interpreter.ts';

/** Finds the Python of prime-rl’s trainer. Throws if the worker runs granted programs alone and this is none. */
export async function trustedPrimeRlPython(program: string | null, projectFolder: string): Promise<string> {
  return trustedInterpreter(await findPrimeRlPython(program, projectFolder), 'The Python of prime-rl');
}

/** Commands that install prime-rl on a machine, as its own documents have them. */
export const installingPrimeRl: readonly string[] = [
  'git clone https://github.com/PrimeIntellect-ai/prime-rl.git',
  'cd prime-rl',
  'git submodule update --init -- deps/verifiers deps/renderers deps/prime-envs deps/pydantic-config',
  'uv sync --all-extras',
];

/** The Python of prime-rl’s trainer: `program` itself, or the one of `.venv` if `program` is a checkout. Does not run it. */
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
