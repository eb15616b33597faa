import { Command } from '@commander-js/extra-typings';
import { committedRun } from '../../../runs/lineages/committed-run.ts';
import { storedSpec } from '../../../runs/forms/stored-spec.ts';
import { advise } from '../../../core/rl/advice/advice.ts';
import { describeRest } from '../../../core/rl/effectiveness.ts';
import { temperatureAt } from '../../../core/rl/sampling/schedule.ts';
import { describeFinding } from '../../output/findings.ts';
import { findRunFolder } from '../../stored/run-place.ts';
import { stepRecords } from '../../../runs/metrics/step-records.ts';
import { storeOption } from '../../typed/store-option.ts';
import { print } from '../../output/print.ts';
import { jsonText } from '../../output/plain-text.ts';

export const adviseCommand = new Command('advise')
  .description('what the committed metrics of a run say about "unstable", "slow" and "no learning", and what to change')
  .argument('<run>')
  .option('--json', 'as one JSON object: run, step, steps, findings')
  .option(...storeOption)
  .action(async (run, options) => {
    const place = await findRunFolder(run, options.store);
    const { spec } = await storedSpec(place);
    const [steps, committed] = await Promise.all([stepRecords(place), committedRun(place)]);
    const findings = advise({
      steps,
      ettr: committed?.effectiveness.ettr ?? null,
      ineffective: committed ? describeRest(committed.effectiveness) : null,
      settings: {
        learningRate: steps.at(-1)?.metrics['train/learning_rate'] ?? spec.learningRate,
        rolloutsPerExample: spec.rolloutsPerExample,
        batchSize: spec.batchSize,
        maxAsyncLevel: spec.maxAsyncLevel,
        maxTokens: spec.sampling.maxTokens,
        temperature: temperatureAt(committed?.step ?? 0, spec) ?? spec.sampling.temperature,
        maxGradNorm: spec.optimizer.maxGradNorm,
        klBeta: spec.kl.beta,
      },
    }).map((finding) => ({ ...finding, change: finding.change.map((what) => what.replaceAll('RUN', run)) }));
    const step = committed?.step ?? 0;
    const lines = options.json
      ? [jsonText({ run, step, steps: steps.length, findings }, 2)]
      : [
          `${run}, up to step ${step}`,
          ...findings.flatMap(describeFinding),
          ...(findings.length === 0 ? ['nothing stands out in its metrics'] : []),
        ];
    print(lines.join('\n'));
  });
