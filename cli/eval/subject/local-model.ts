import { createHash } from 'node:crypto';
import { existsSync, statSync } from 'node:fs';
import { readdir } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../../../core/errors.ts';
import { environmentForAll, secretVariable, selectEnvironment } from '../../../core/child-environment.ts';
import { ofRepository } from '../../../engine/model/model-repository.ts';
import { openRegular } from '../../../host/regular-file.ts';
import { linesOfServerOf, writeGrants } from '../../../host/grants.ts';
import { makeSecret } from '../../../host/project-secret.ts';
import { startGuard } from '../../../workers/stack/guard.ts';
import { choosePort } from '../../../workers/stack/ports.ts';
import { policyUrlAt, programArguments } from '../../../workers/stack/roles.ts';
import { splitSecrets } from '../../../workers/stack/secrets-pipe.ts';
import { SupervisedProcess } from '../../../workers/stack/supervised-process.ts';

/** Whether a model's name is a folder here with a model in it. */
export function isModelFolder(model: string): boolean {
  const folder = path.resolve(model);
  return existsSync(path.join(folder, 'config.json')) && statSync(folder).isDirectory();
}

/**
 * Name of a folder's model in an evaluation: its origin and the sha256 of its weights. Two runs may both have a
 * step_100, and a folder may hold other weights tomorrow; neither may share an evaluation.
 */
export async function nameOfFolder(folder: string): Promise<string> {
  const absolute = path.resolve(folder);
  const [run, weights, step] = absolute.split(path.sep).slice(-3);
  const ofRun = weights === 'weights' && step?.startsWith('step_') ? `${run}-` : '';
  return `${ofRun}${path.basename(absolute)}-${(await digestOfFolder(absolute)).slice(0, 8)}`;
}

/** sha256 over all weight files and config.json. */
async function digestOfFolder(folder: string): Promise<string> {
  const digest = createHash('sha256');
  const names = (await readdir(folder)).filter((name) => name.endsWith('.safetensors') || name === 'config.json');
  for (const name of names.sort()) {
    digest.update(`${name}\n`);
    const file = await openRegular(path.join(folder, name), ofRepository(folder));
    for await (const chunk of file.createReadStream()) digest.update(chunk as Buffer);
  }
  return digest.digest('hex');
}

export interface ServedModel {
  /** Base URL of its API. */
  readonly url: string;
  /** Name of the model in its API. */
  readonly model: string;
  stop(): Promise<void>;
}

/** An OpenAI-compatible server over a folder of a model, started again should it die. */
export async function serveModel(
  folder: string,
  model: string,
  { projectFolder, log }: { readonly projectFolder: string; readonly log: (line: string) => void },
): Promise<ServedModel> {
  const absolute = path.resolve(projectFolder, folder);
  if (!isModelFolder(absolute)) {
    throw new RatchetError(
      'ConfigInvalid',
      `--serve ${folder}: expected a folder with config.json and safetensors, of a model or a checkpoint.`,
    );
  }
  const port = await choosePort(0);
  const { open, secrets } = splitSecrets({
    ...selectEnvironment([...environmentForAll, 'RATCHET_*'], process.env),
    [secretVariable]: makeSecret(projectFolder),
  });
  const guard = startGuard();
  const server = new SupervisedProcess(
    {
      name: 'model server',
      command: process.execPath,
      args: programArguments('policy-server').concat(
        ['--port', String(port), '--threads', '1'],
        ['--allow-root', absolute, '--load', `${model}=${absolute}`],
      ),
      env: open,
      secrets,
      folder: projectFolder,
      rank: 'role',
      ready: { line: 'policy server listening' },
    },
    { guard, logFolder: path.join(projectFolder, '.ratchet', 'logs'), log },
  );
  log(`serving ${folder} at ${policyUrlAt(port)}/v1`);
  try {
    await server.start();
  } catch (error) {
    guard.close();
    throw error;
  }
  writeGrants(projectFolder, linesOfServerOf(process.pid, policyUrlAt(port)));
  return {
    url: `${policyUrlAt(port)}/v1`,
    model,
    stop: async () => {
      await server.stop(stopGraceMs);
      guard.close();
    },
  };
}

const stopGraceMs = 2_000;
