import { Command } from 'commander';
import { checkModel } from '../../backends/configs/check-model.ts';
import { loadRunConfig } from '../../backends/configs/load-run-config.ts';
import { openEnvironment } from '../../backends/environments/index.ts';
import { showStoreUri } from '../../backends/store/index.ts';
import type { RunSpec } from '../../core/spec/run-spec.ts';
import { adapterParameterCount, openModel } from '../../engine/index.ts';
import { otherKind } from '../other-kinds.ts';
import { readOverrides } from '../overrides.ts';
import { toldWhenSlow } from '../told-when-slow.ts';

type Config = Parameters<typeof adapterParameterCount>[0];

export const checkCommand = new Command('check')
  .description('say everything that is wrong with a run file, and what it will do; starts nothing')
  .argument('<file>', 'run file (TOML)')
  .argument('[overrides...]')
  .allowUnknownOption()
  .action(async (file: string, rest: string[]) => {
    const options = { projectFolder: process.cwd(), overrides: readOverrides(rest) };
    const other = await otherKind(file, options);
    if (other) {
      process.stdout.write(`${other.lines.join('\n')}\n`);
      return;
    }
    const { spec, warnings } = await loadRunConfig(file, options);
    await checkModel(spec);
    const model = await openModel(spec.model, { seed: spec.seed });
    const said = new Set<string>();
    const lines = [
      `${file} is a run named ${spec.name}:`,
      `  model         ${spec.model}, ${(model.parameters.flat.length / 1e6).toFixed(2)} M parameters`,
    ];
    for (const entry of [
      ...spec.environments,
      ...(spec.eval?.environments ?? []).map((e) => ({ ...e, isEval: true })),
    ]) {
      const environment = await toldWhenSlow(entry.id, () => openEnvironment(entry));
      for (const warning of environment.warnings ?? []) said.add(warning);
      const isEval = 'isEval' in entry;
      const count = isEval ? environment.evalDataset.length : environment.dataset.length;
      lines.push(
        `  ${isEval ? 'eval          ' : 'environment   '}${entry.name}, ${count} ${isEval ? 'held-out ' : ''}examples`,
      );
    }
    lines.push(
      spec.maxSteps === 0
        ? '  each step     none: supervised training alone'
        : `  each step     ${spec.batchSize / spec.rolloutsPerExample} groups × ${spec.rolloutsPerExample} rollouts, ${spec.maxSteps} steps, async level ${spec.maxAsyncLevel}${sampledBy(spec.inference)}`,
      `  trains        ${trainedPart(spec, model.config)}`,
      `  loss          ${lossLine(spec)}`,
      `  warm-up       ${spec.sft ? `${spec.sft.steps} supervised steps of ${spec.sft.batchSize}${spec.sft.data ? ` from ${spec.sft.data.path}` : ''}` : 'none'}`,
      `  checkpoints   every ${spec.checkpoints.interval} steps in ${showStoreUri(spec.store.uri)}${spec.name}/`,
    );
    for (const warning of [...warnings, ...said]) process.stdout.write(`warning: ${warning}\n`);
    process.stdout.write(`${lines.join('\n')}\n`);
  });

function sampledBy(inference: RunSpec['inference']): string {
  if (inference.kind === 'module') return `, sampled by ${inference.import.path}`;
  return inference.provider === 'cpu' ? '' : `, sampled on ${inference.provider}`;
}

function trainedPart({ lora, numIterations, trainer, schedule }: RunSpec, config: Config): string {
  const what = lora
    ? `adapters of ${(adapterParameterCount(config, lora) / 1e6).toFixed(2)} M parameters (r ${lora.r}, alpha ${lora.alpha}, dropout ${lora.dropout}) on ${lora.targetModules.join(', ')}`
    : 'all weights';
  const passes = numIterations === 1 ? '' : `, ${numIterations} passes over a batch`;
  const by = trainer.kind === 'module' ? `by ${trainer.import.path}` : `on ${trainer.provider}`;
  return `${what}${passes}, ${schedule.type} learning rate, ${by}`;
}

function lossLine({ loss, advantage }: RunSpec): string {
  const { type, clipLow, clipHigh, maskLow, maskHigh } = loss;
  const bounds = {
    cispo: `, ratio ≤ ${clipHigh}`,
    grpo: `, ratio from ${clipLow} to ${clipHigh}`,
    importance_sampling:
      maskLow === 0 && maskHigh === null ? '' : `, tokens of a ratio from ${maskLow} to ${maskHigh ?? '∞'}`,
    custom: '',
  };
  const code = loss.import ? ` ${loss.import.path}` : '';
  const kind = typeof advantage === 'string' ? advantage : `custom ${advantage.import.path}`;
  return `${type}${code}${bounds[type]}, by ${loss.aggregation}; advantage ${kind}`;
}
