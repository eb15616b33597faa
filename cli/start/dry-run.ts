import type { CommandUnknownOpts } from '@commander-js/extra-typings';
import { chooseSampler, withSampler } from './choose-sampler.ts';
import { planDryRun } from '../../load/checks/dry-run.ts';
import { examineRunFile } from '../../load/checks/examine-run-file.ts';
import type { LoadOptions } from '../../load/load-run-config.ts';
import { ConfigProblems } from '../../config/toml/problems.ts';
import { describeDryRun } from '../describe/dry-run.ts';
import { lookAtGpuMemory } from '../describe/gpu-memory.ts';
import { describeRunFile } from '../describe/run-file.ts';
import { toldWhenSlow } from '../output/told-when-slow.ts';
import { requirePairs } from '../typed/option-pairs.ts';
import { print, printJson } from '../output/print.ts';

export interface DryRunFlags {
  readonly dryRun?: boolean;
  readonly modelConfig?: string;
  readonly json?: boolean;
  /** Whether to run code that the file names. */
  readonly import?: boolean;
}

/** Flags of a dry run, for commander. */
export const dryRunOptions = {
  dryRun: ['--dry-run', 'say what the run would be and take, or with --json print the resolved run; start nothing'],
  import: ['--import', 'with --dry-run: run what the file names, such as environments of your own, to look at it'],
  modelConfig: [
    '--model-config <file>',
    "a model's config.json, for --dry-run where the model is neither here nor known",
  ],
} as const;

/** Refuses options of a dry run where none is asked for. */
export function besideDryRun<Typed extends CommandUnknownOpts>(command: Typed): Typed {
  return requirePairs(command, {
    beside: [
      ['--model-config', '--dry-run'],
      ['--import', '--dry-run'],
    ],
  });
}

/** Prints what a run would be and need; returns the exit code. Starts and contacts nothing. */
export async function dryRun(file: string, options: LoadOptions, flags: DryRunFlags): Promise<number> {
  const sampler = await chooseSampler(file, options);
  const { overrides, looked } = sampler;
  const asked = { ...options, overrides, looked, imports: flags.import === true };
  const report = withSampler(await examineRunFile(file, asked, toldWhenSlow), sampler);
  if (report.loaded === null) throw new ConfigProblems(report.problems, report.readAs);
  const { spec } = report.loaded;
  if (flags.json) {
    printJson(spec, 2);
    return 0;
  }
  const run = await planDryRun(report, spec, flags.modelConfig);
  const ofGpus = await lookAtGpuMemory(report.loaded, flags.modelConfig);
  const whole = 'every setting, as resolved: the same command with --json';
  const lines = [...describeDryRun(spec, run), '', ...describeRunFile(report), ...ofGpus.lines, '', whole];
  print(lines.join('\n'));
  return 0;
}
