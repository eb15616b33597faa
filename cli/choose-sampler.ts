import type { RunFileReport } from '../backends/configs/examine-run-file.ts';
import { loadRunConfig, type LoadedConfig, type LoadOptions } from '../backends/configs/load-run-config.ts';
import type { NotYet } from '../config/parse-run-config.ts';
import { ConfigProblems } from '../config/problems.ts';
import { oneGpuFeature, vllmFeature } from '../config/settings/later.ts';
import { gpusHere } from '../workers/gpus-here.ts';
import { chooseTrainer } from './choose-trainer.ts';
import { readRunningStack } from '../workers/project-lock.ts';
import { pythonWithVllm } from '../workers/vllm-role.ts';

/** Who samples a run whose file is another system's, and names GPUs or settings for that system's vLLM. */
export interface ChosenSampler {
  /** Those that were typed, and what makes vLLM sample where it does. */
  readonly overrides: Readonly<Record<string, string>>;
  /** Who samples and why, in a line; null where the file says it itself, or says nothing of vLLM. */
  readonly says: string | null;
  /** The same of where it is trained (`chooseTrainer`). */
  readonly trainerSays: string | null;
}

type Sampler = Omit<ChosenSampler, 'trainerSays'>;

const setting = 'ratchet.inference.kind';
const trainerSetting = 'ratchet.trainer.provider';

/**
 * vLLM, where the file names GPUs for it and both are on this machine; else the embedded engine. Looks for programs, and starts nothing. What
 * is chosen is a setting of the command line, so that every worker reads the file alike.
 */
export async function chooseSampler(file: string, options: LoadOptions): Promise<ChosenSampler> {
  const { overrides = {}, projectFolder } = options;
  const loaded = await loadRunConfig(file, { ...options, isOnlyLookedAt: true }).catch((error: unknown) => {
    if (error instanceof ConfigProblems) return null; // told by who reads it next
    throw error;
  });
  if (loaded === null) return { overrides, says: null, trainerSays: null };
  const { provider, says: trainerSays } = await chooseTrainer(loaded, await othersWork(projectFolder));
  const trained = provider === null ? overrides : { ...overrides, [trainerSetting]: provider };
  return { ...(await samplerOf(loaded, { overrides: trained, projectFolder })), trainerSays };
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
  const { later } = loaded.spec;
  const gpus = Number(later['inference.gpus'] ?? 0);
  const settings = Object.keys((later['inference.vllm'] as object | undefined) ?? {});
  const embedded = (why: string): Sampler => ({
    overrides,
    says: `the embedded engine samples, and not the vLLM that the file has ${gpus > 0 ? counted(gpus) : `settings (${settings.join(', ')})`} for: ${why}`,
  });
  if (gpus === 0)
    return settings.length === 0 ? nothing : embedded('it names no GPUs for it. To start one: --inference.kind vllm');
  const others = await othersWork(projectFolder);
  if (others !== null) return embedded(`${others}. With a vLLM of theirs: --inference.kind vllm (docs/guide/vllm.md)`);
  const there = await gpusHere();
  if (there < gpus)
    return embedded(
      `this machine has ${there === 0 ? 'none' : counted(there)}. Elsewhere: --inference.kind vllm, or [ratchet.inference] url (docs/guide/vllm.md)`,
    );
  const python = await pythonWithVllm(projectFolder);
  if (python === null)
    return embedded(
      'no Python here has it: uv venv .venv && uv pip install --python .venv/bin/python vllm (docs/guide/vllm.md)',
    );
  return {
    overrides: { ...overrides, [setting]: 'vllm' },
    says: `vLLM samples, started from ${python} on ${counted(gpus)}, as the file asks; the embedded engine does with --inference.kind embedded`,
  };
}

/** What is read and not honoured, without what the line on the sampler says. */
export function notYetBeside(
  notYet: readonly NotYet[],
  { says, trainerSays }: Pick<ChosenSampler, 'says' | 'trainerSays'>,
): readonly NotYet[] {
  return notYet.filter(
    ({ feature }) =>
      !(says !== null && feature === vllmFeature) && !(trainerSays !== null && feature === oneGpuFeature),
  );
}

/** A report of what is done with the file, with who samples among its warnings. */
export function withSampler(report: RunFileReport, sampler: ChosenSampler): RunFileReport {
  const said = [sampler.says, sampler.trainerSays].filter((line) => line !== null);
  if (said.length === 0) return report;
  return { ...report, notYet: notYetBeside(report.notYet, sampler), warnings: [...report.warnings, ...said] };
}

/** Who plays the run in place of processes that `train` would start, and may have no vLLM; null where it starts them. */
async function othersWork(projectFolder: string): Promise<string | null> {
  if ((process.env['TEMPORAL_ADDRESS'] ?? '') !== '') return 'TEMPORAL_ADDRESS has workers of its own';
  return (await readRunningStack(projectFolder)) === null ? null : 'the processes of this folder were started already';
}

/** A file in another system's words, on which nothing says who samples. */
function leavesItOpen({ spec, readAs, placeOf }: LoadedConfig): boolean {
  const { inference, trainer } = spec;
  const { file, line } = placeOf(['inference', 'kind']);
  const isSaid = line !== null || file === 'command line';
  const isAlone = inference.kind === 'embedded' && inference.url === null && inference.endpoints === null;
  return readAs.dialect !== 'ratchet' && isAlone && !isSaid && trainer.kind !== 'tinker';
}

function counted(gpus: number): string {
  return `${gpus} GPU${gpus === 1 ? '' : 's'}`;
}
