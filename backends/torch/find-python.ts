import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import { enginePackages, hasModules, pythonCandidates } from '../python/engine-python.ts';

const { modules } = enginePackages.torch;

/** The Python of a trainer: the one that the run names, by its path; else the first here that has the packages. Throws without one. */
export async function findTorchPython(program: string | null, projectFolder: string): Promise<string> {
  if (program !== null)
    return path.isAbsolute(program) || !program.includes('/') ? program : path.resolve(projectFolder, program);
  const candidates = pythonCandidates(['torch'], projectFolder);
  for (const command of candidates) if (await hasModules(command, modules)) return command;
  throw new RatchetError(
    'ServerUnavailable',
    `[trainer] kind = "torch" needs a Python with ${modules.join(', ')}, and found none (looked at ${candidates.join(', ')}). Install it: npx ratchet-rl engine install torch; or name one: [trainer] program = "/path/to/venv/bin/python".`,
  );
}
