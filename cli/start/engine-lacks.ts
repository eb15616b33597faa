import { access, constants, stat } from 'node:fs/promises';
import path from 'node:path';
import type { Obstacle } from '../../load/checks/examine-run-file.ts';
import { samplesOn, trainsOn } from '../../config/gpu-settings.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { RatchetError } from '../../core/errors.ts';
import { enginePackages, modulesLacking } from '../../backends/python/engine-python.ts';
import { findPrimeRlPython, installingPrimeRl } from '../../backends/prime-rl/find-python.ts';
import { unfitFor } from '../../backends/prime-rl/fits-installation.ts';
import { sourcesOf } from '../../backends/prime-rl/profiles.ts';
import { findTorchPython } from '../../backends/torch/find-python.ts';
import { nodesPlace } from '../../backends/nodes/node-link.ts';
import { sizeOfEngine } from '../../workers/install/engine.ts';
import type { LoadedConfig } from '../../load/load-run-config.ts';
import { lookAtGpuMemory } from '../describe/gpu-memory.ts';
import { checkGpu } from '../doctor/machine.ts';

/** Whether the embedded engine computes on a GPU, to train or to sample. */
export function needsCuda(run: Pick<RunSpec, 'trainer' | 'inference'>): boolean {
  return samplesOn(run) === 'cuda' || trainsOn(run) === 'cuda';
}

/** Missing requirements of `provider = "cuda"` on this machine, in the words of `ratchet doctor`. */
export async function cudaLacks(): Promise<Obstacle[]> {
  const checks = await checkGpu({ cuda: true });
  return checks.flatMap(({ name, state, says, fix }) =>
    state === 'bad' ? [{ about: 'machine', says: `${name}: ${says}`, remedies: fix === undefined ? [] : [fix] }] : [],
  );
}

/** Missing requirements of the run's trainer and sampler on this machine; empty if workers elsewhere compute. */
export async function engineObstacles(spec: RunSpec): Promise<Obstacle[]> {
  if ((process.env['TEMPORAL_ADDRESS'] ?? '') !== '') return [];
  return [
    ...(needsCuda(spec) ? await cudaLacks() : []),
    ...(await torchObstacles(spec)),
    ...(await programObstacles(spec)),
    ...(await primeRlObstacles(spec)),
    ...nodesObstacles(spec),
  ];
}

/** Missing requirements of a run on this machine, and the memory that it takes of the GPUs. */
export async function lookAtMachine(loaded: Pick<LoadedConfig, 'spec' | 'readAs'>) {
  return { obstacles: await engineObstacles(loaded.spec), gpus: await lookAtGpuMemory(loaded) };
}

/** A trainer on several nodes needs the address at which the others join, and this machine has to have it. */
export function nodesObstacles({ trainer }: Pick<RunSpec, 'trainer'>): Obstacle[] {
  if (!('nodes' in trainer) || trainer.nodes === 1 || nodesPlace(process.env) !== null) return [];
  const says = `[trainer] nodes = ${trainer.nodes}: the other nodes join this machine, and nothing says where they reach it`;
  const guide = 'docs/guide/several-machines.md#a-trainer-on-several-machines';
  return [{ about: 'machine', says, remedies: [`set MASTER_ADDR to an address of this machine (${guide})`] }];
}

/** The Python that the run names for its trainer: whether it is there, and has its packages. It is not run, since the file may be somebody else's. */
export async function programObstacles({ trainer }: Pick<RunSpec, 'trainer'>): Promise<Obstacle[]> {
  if (!('program' in trainer) || !trainer.program?.includes('/')) return []; // a name is looked for on the PATH
  const find = trainer.kind === 'torch' ? findTorchPython : findPrimeRlPython;
  const file = await find(trainer.program, process.cwd());
  const isProgram = await access(file, constants.X_OK)
    .then(() => stat(file))
    .then(
      (found) => found.isFile(),
      () => false, // not there, or not ours to run
    );
  if (isProgram && trainer.kind === 'torch') return packageObstacles(trainer.program, file);
  const lacking = isProgram ? (modulesLacking(file, ['torch', 'msgspec', 'prime_rl']) ?? []) : [];
  if (isProgram && lacking.length === 0) return [];
  const looked = file === trainer.program ? '' : `: ${file}`;
  const named = `[trainer] program = ${JSON.stringify(trainer.program)}`;
  const says = isProgram
    ? `${named} lacks ${lacking.join(', ')}, which prime-rl’s trainer needs`
    : `${named} is no program that can be started here${looked}`;
  if (trainer.kind === 'prime-rl') return [{ about: 'machine', says, remedies: [`name a checkout of prime-rl, or its Python; to make one: ${installingPrimeRl.join(' && ')}`] }]; // prettier-ignore
  return [{ about: 'machine', says, remedies: ['name the Python of an environment: "/path/to/venv/bin/python"'] }];
}

/** What the run asks for and its prime-rl does not have, by the sources of that, which are read and not run. */
export async function primeRlObstacles(spec: RunSpec): Promise<Obstacle[]> {
  const { trainer } = spec;
  if (trainer.kind !== 'prime-rl' || trainer.program === null) return [];
  const python = await findPrimeRlPython(trainer.program, process.cwd());
  const installation = await sourcesOf(path.resolve(trainer.program), python);
  if (installation === null) return [];
  const remedies = ['change the run file, or name another prime-rl in [trainer] program (docs/guide/prime-rl.md)'];
  return unfitFor(spec, installation, python).map((says) => ({ about: 'machine', says, remedies }));
}

function packageObstacles(program: string, file: string): Obstacle[] {
  const lacking = modulesLacking(file, enginePackages.torch.modules) ?? [];
  if (lacking.length === 0) return [];
  const says = `[trainer] program = ${JSON.stringify(program)} lacks ${lacking.join(', ')}, which PyTorch’s trainer needs`;
  const remedies = [
    `install them there: ${file} -m pip install ${lacking.join(' ')}`,
    `or leave program out: npx ratchet-rl engine install torch (${sizeOfEngine('torch')})`,
  ];
  return [{ about: 'machine', says, remedies }];
}

/** A Python for PyTorch's trainer, where the run names none of its own, which is not asked. */
export async function torchObstacles({ trainer }: Pick<RunSpec, 'trainer'>): Promise<Obstacle[]> {
  if (trainer.kind !== 'torch' || trainer.program !== null) return [];
  if ((process.env['TEMPORAL_ADDRESS'] ?? '') !== '') return [];
  try {
    await findTorchPython(null, process.cwd());
    return [];
  } catch (error) {
    if (!(error instanceof RatchetError)) throw error;
    const remedies = [
      `npx ratchet-rl engine install torch (${sizeOfEngine('torch')}), or train with --yes`,
      'or name a Python that has them: [trainer] program = "/path/to/venv/bin/python"',
    ];
    const says = `[trainer] kind = "torch" trains with PyTorch, and no Python here has ${enginePackages.torch.modules.join(', ')}`;
    return [{ about: 'machine', says, remedies }];
  }
}
