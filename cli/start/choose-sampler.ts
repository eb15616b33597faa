import type { RunFileReport } from '../../load/checks/examine-run-file.ts';
import { type LoadedConfig, type LoadOptions, lookAtRunFile } from '../../load/load-run-config.ts';
import { startedWith } from '../../core/kinds/inference.ts';
import { gpusHere } from '../../workers/stack/gpus-here.ts';
import { chooseTrainer, trainerOfRun } from './choose-trainer.ts';
import { readRunningStack } from '../../workers/stack/project-lock.ts';
import type { EnginePackage } from '../../backends/python/engine-python.ts';
import { sizeOfEngine } from '../../workers/install/engine.ts';
import { pythonWithVllm } from '../../workers/stack/vllm-role.ts';

/** Sampler of a run whose file is another system's and names GPUs for that system's vLLM. */
export interface ChosenSampler {
  /** The typed overrides, and those that make vLLM sample where it does. */
  readonly overrides: Readonly<Record<string, string>>;
  /** The sampler and the reason in a line; null when the file names it, or no GPUs for a vLLM. */
  readonly says: string | null;
  /** The same line about the trainer (`chooseTrainer`). */
  readonly trainerSays: string | null;
  /** Engines that would be chosen, and are not installed. */
  readonly lacking: readonly EnginePackage[];
  /** The file, examined with these overrides; null if it is not a valid run file. */
  readonly looked: LoadedConfig | null;
}

type Sampler = Pick<ChosenSampler, 'overrides' | 'says'> & { readonly isLacking?: boolean };

const setting = 'ratchet.inference.kind';

/**
 * vLLM if the file names GPUs for it and both are on this machine; else the embedded engine. Looks for programs, and
 * starts nothing. The choice is a setting of the command line, so that all workers read the file alike. `run`: its name, null for one that
 * is new; the file's when left out.
 */
export async function chooseSampler(
  file: string,
  options: LoadOptions,
  before?: LoadedConfig,
  run?: string | null,
): Promise<ChosenSampler> {
  const { overrides = {}, projectFolder } = options;
  const found = before ?? (await lookAtRunFile(file, options));
  if (found === null) return { overrides, says: null, trainerSays: null, lacking: [], looked: null };
  const { name, store } = found.spec;
  const trainer = await chooseTrainer(found, {
    projectFolder,
    othersWork: await othersWork(projectFolder),
    began: async () => (run === null ? null : trainerOfRun({ name: run ?? name, store: store.uri })),
  });
  const trained = { ...overrides, ...trainer.overrides };
  const sampler = await samplerOf(found, { overrides: trained, projectFolder });
  const isOther = Object.keys(sampler.overrides).length > Object.keys(overrides).length;
  const looked = isOther ? await lookAtRunFile(file, { ...options, overrides: sampler.overrides }) : found;
  const lacking = [...(trainer.isLacking ? ['torch' as const] : []), ...(sampler.isLacking ? ['vllm' as const] : [])];
  return { overrides: sampler.overrides, says: sampler.says, trainerSays: trainer.says, lacking, looked };
}

async function samplerOf(
  loaded: LoadedConfig,
  {
    overrides,
    projectFolder,
  }: { readonly overrides: Readonly<Record<string, string>>; readonly projectFolder: string },
): Promise<Sampler> {
  const nothing = { overrides, says: null };
  if (!leavesItOpen(loaded)) return nothing;
  const gpus = loaded.spec.requested?.inferenceGpus ?? 0;
  const embedded = (why: string): Sampler => ({
    overrides,
    says: `the embedded engine samples, and not the vLLM that the file has ${counted(gpus)} for: ${why}`,
  });
  if (gpus === 0) return nothing;
  const others = await othersWork(projectFolder);
  if (others !== null) return embedded(`${others}. With a vLLM of theirs: --inference.kind vllm (docs/guide/vllm.md)`);
  const there = await gpusHere();
  // If a trainer has several nodes, this machine is one of them, and the GPUs that sample are on others.
  const { requested } = loaded.spec;
  const taken = Number(requested?.torch['nodes'] ?? 1) > 1 ? (requested?.trainerGpus ?? 0) : 0;
  if (there < gpus + taken)
    return embedded(
      `this machine has ${there === 0 ? 'none' : counted(there)}. Elsewhere: --inference.kind vllm, or [ratchet.inference] url (docs/guide/vllm.md)`,
    );
  const python = await pythonWithVllm(projectFolder);
  if (python === null) {
    const install = `no Python here has it: npx ratchet-rl engine install vllm (${sizeOfEngine('vllm')}), or train with --yes`;
    return { ...embedded(install), isLacking: true };
  }
  return {
    overrides: { ...overrides, [setting]: 'vllm' },
    says: `vLLM samples, started from ${python} on ${counted(gpus)}, as the file asks; the embedded engine does with --inference.kind embedded`,
  };
}

/** Adds the sampler to the warnings of a report on the file. */
export function withSampler(report: RunFileReport, sampler: ChosenSampler): RunFileReport {
  const said = [sampler.says, sampler.trainerSays].filter((line) => line !== null);
  return { ...report, warnings: [...report.warnings, ...said] };
}

/**
 * Workers that would carry out the run instead of processes that `train` starts, and may have no vLLM; null when
 * `train` starts its own.
 */
async function othersWork(projectFolder: string): Promise<string | null> {
  if ((process.env['TEMPORAL_ADDRESS'] ?? '') !== '') return 'TEMPORAL_ADDRESS has workers of its own';
  return (await readRunningStack(projectFolder)) === null ? null : 'the processes of this folder were started already';
}

/** Whether another system's file leaves the sampler open. */
function leavesItOpen({ spec, readAs, placeOf }: LoadedConfig): boolean {
  const { file, line } = placeOf(['inference', 'kind']);
  const isSaid = line !== null || file === 'command line';
  return readAs.dialect !== 'ratchet' && startedWith(spec.inference) === 'policy server' && !isSaid;
}

function counted(gpus: number): string {
  return `${gpus} GPU${gpus === 1 ? '' : 's'}`;
}
