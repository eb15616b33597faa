import { spawn } from 'node:child_process';
import { accessSync, constants, existsSync, statSync } from 'node:fs';
import path from 'node:path';
import { RatchetError } from '../core/errors.ts';
import { readEnvironmentId } from '../core/spec/find-environment.ts';
import { listEnvironments } from '../backends/environments/load.ts';

/** Where Python environments are run one day; until then they can be installed, and nothing more. */
const toCome = 'Python environments (verifiers) are still to come: Ratchet cannot run this one yet.';

/**
 * Installs an environment by asking the `prime` CLI; where there is none, says what to run. The exit code: that of `prime`, 1 where nothing
 * was installed. Only called where a person asked for it, by `ratchet env install` or with `--yes`.
 */
export async function installEnvironment(written: string, projectFolder: string): Promise<number> {
  const id = readEnvironmentId(written);
  if (id === undefined) {
    throw new RatchetError(
      'ConfigInvalid',
      `ratchet env install: expected OWNER/NAME, OWNER/NAME@VERSION or the name of a folder of ./environments, received ${JSON.stringify(written)}`,
    );
  }
  const folder = path.join('environments', id.module);
  const isLocal = id.owner === null && existsSync(path.join(projectFolder, folder));
  if (id.owner === null && !isLocal) {
    const isBuiltIn = listEnvironments().includes(id.name);
    process.stdout.write(
      isBuiltIn
        ? `${id.name} comes with Ratchet: there is nothing to install. Name it as id = "${id.name}".\n`
        : `There is no folder ${folder} here. To install from the Environments Hub, name the owner: npx ratchet env install OWNER/${id.name}\n`,
    );
    return isBuiltIn ? 0 : 1;
  }
  const prime = findProgram('prime');
  if (prime === undefined) {
    const direct = isLocal ? [`  uv pip install -e ./${folder}`] : [];
    process.stdout.write(
      [
        'The prime CLI, which installs environments, is not on the PATH. To install it, and then the environment:',
        '  uv tool install prime',
        `  prime env install ${written}`,
        ...(isLocal ? ['or, as it lies in this project:', ...direct] : []),
        toCome,
        '',
      ].join('\n'),
    );
    return 1;
  }
  process.stdout.write(`${prime} env install ${written}\n`);
  const code = await runProgram(prime, ['env', 'install', written], projectFolder);
  process.stdout.write(
    code === 0 ? `installed. ${toCome}\n` : `prime ended with exit code ${code}; nothing was installed by us.\n`,
  );
  return code;
}

/** The first program of that name on the PATH. */
function findProgram(name: string): string | undefined {
  const folders = (process.env['PATH'] ?? '').split(path.delimiter).filter((folder) => folder !== '');
  return folders.map((folder) => path.join(folder, name)).find(isExecutable);
}

function isExecutable(file: string): boolean {
  try {
    accessSync(file, constants.X_OK);
    return statSync(file).isFile();
  } catch {
    return false; // Not there, or not ours to run.
  }
}

function runProgram(program: string, args: readonly string[], cwd: string): Promise<number> {
  return new Promise((resolve, reject) => {
    const child = spawn(program, args, { cwd, stdio: 'inherit' });
    child.once('error', reject);
    child.once('close', (code) => resolve(code ?? 1));
  });
}
