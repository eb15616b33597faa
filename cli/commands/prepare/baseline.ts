import { randomBytes } from 'node:crypto';
import { Command } from '@commander-js/extra-typings';
import { storeOf } from '../../../runs/run-access.ts';
import { checkModel } from '../../../load/checks/check-model.ts';
import { loadRunConfig, readRunFile } from '../../../load/load-run-config.ts';
import { firstTemperature, judgeBaseline, measureBaseline } from '../../../core/rl/advice/baseline.ts';
import { startClock } from '../../output/clock.ts';
import { grantNamed, namedIn } from '../../../load/grants/grant.ts';
import { type ConfigLine, laidOver, readConfigLine } from '../../typed/config-line.ts';
import { readCount } from '../../typed/read-count.ts';
import { needsOf, withProcesses } from '../../start/processes.ts';
import { whenLeft } from '../../follow/watch-run.ts';
import { print, printAside, printJson } from '../../output/print.ts';
import { sampleRound, removeRun } from '../../start/sample-baseline.ts';
import { describeBaselines } from '../../describe/baseline.ts';

export const baselineCommand = new Command('baseline')
  .description(
    "before training: what the run's own model does on the run's own environments, and what the rules of thumb say of it",
  )
  .argument('<file>', 'run file (TOML)')
  .argument(
    '[overrides...]',
    'any setting of the file: --sampling.temperature 0.9, and files that are laid over it: @ FILE',
  )
  .option('--dialect <name>', 'whose words it is written in; default: what its keys show')
  .option('--examples <n>', 'how many examples', '32')
  .option('--rollouts <k>', "rollouts of each; default: the file's rollouts_per_example")
  .option('--keep', 'keep the run folder that it was measured in')
  .option('--json', 'as one JSON object: settings, baselines, findings')
  .allowUnknownOption()
  .action(async (file, rest, options) => {
    process.exitCode = await baseline(readConfigLine([file, ...rest]), options);
  });

interface BaselineOptions {
  readonly dialect?: string;
  readonly examples: string;
  readonly rollouts?: string;
  readonly keep?: boolean;
  readonly json?: boolean;
}

/**
 * Starts the run itself under another name, up to the first scored sampling round of step 1: the same warm-up, policy
 * server, environments and rubrics as training, nothing imitated. Then it is cancelled and its folder removed.
 */
async function baseline({ file, over, overrides: typed }: ConfigLine, options: BaselineOptions): Promise<number> {
  const projectFolder = process.cwd();
  const read = await readRunFile(file, { projectFolder, over });
  const laid = laidOver(read.toml, over, options);
  const named = { projectFolder, read, ...laid };
  const ofFile = (await loadRunConfig(file, { ...named, overrides: typed })).spec;
  const groupSize =
    options.rollouts === undefined ? ofFile.rolloutsPerExample : readCount('--rollouts', options.rollouts);
  const groups = readCount('--examples', options.examples);
  const run = `${ofFile.name.slice(0, 50)}-baseline-${randomBytes(2).toString('hex')}`;
  const overrides = {
    ...typed,
    'rollouts-per-example': String(groupSize),
    'batch-size': String(groups * groupSize),
    'oversampling-factor': '1',
    'max-async-level': '0',
    'max-steps': '1',
    ...(ofFile.wandb === null ? {} : { 'wandb.mode': 'disabled' }),
  };
  const { spec, sent } = await loadRunConfig(file, { ...named, overrides, run });
  await checkModel(spec);
  grantNamed(projectFolder, [file, ...over.map((layer) => layer.file), ...namedIn(spec)]);
  const clock = startClock();
  const log = options.json ? { ...clock, say: printAside } : clock;
  const place = { name: run, store: spec.store.uri };
  const left = whenLeft();
  const { signal } = left.interrupted;
  const measure = async ({ client }: { readonly client: Parameters<typeof sampleRound>[0] }): Promise<number> => {
    log.say(
      `sampling ${groups} examples × ${groupSize} with ${ofFile.sft && ofFile.sft.steps > 0 ? 'the model after its warm-up' : spec.model}`,
    );
    const measured = await sampleRound(client, place, { file, laid, overrides, sent, groups, signal });
    const settings = {
      temperature: firstTemperature(spec),
      maxTokens: spec.sampling.maxTokens,
      rolloutsPerExample: ofFile.rolloutsPerExample,
      batchSize: ofFile.batchSize,
    };
    const baselines = measureBaseline(measured);
    const findings = judgeBaseline(baselines, settings);
    if (options.json) printJson({ run: ofFile.name, settings, baselines, findings }, 2);
    else print(describeBaselines(file, { baselines, findings, measured }).join('\n'));
    if (options.keep) log.say(`stored in: ${storeOf(place).uri}   (npx ratchet-rl rollouts ${run} --step 1)`);
    return findings.some(({ level }) => level === 'stop') ? 1 : 0;
  };
  try {
    return (await withProcesses(needsOf(spec), log, measure, left)) ?? 130;
  } catch (error) {
    if (signal.aborted) return 130;
    throw error;
  } finally {
    if (!options.keep) await removeRun(place);
  }
}
