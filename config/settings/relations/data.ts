import { kindsWith } from '../../../core/kinds/kinds-of.ts';
import { trainers, trainerTraits } from '../../../core/kinds/trainers.ts';
import type { RatchetConfig } from '../index.ts';
import { isHubData } from '../sft.ts';
import { problem, type Relations } from './problem.ts';

/** Refuses settings that do not apply to a run on rows of `[data]`. */
export function* dataRelations(config: RatchetConfig): Relations {
  const { data, env, sft, teacher, gepa, loss, eval: evaluation } = config;
  if (data === undefined) return;
  const isRow = 'nothing beside [data]: each step is trained on its rows';
  if (env.length > 0) {
    yield problem(['env.0.id', 'env'], `${isRow}; what is only evaluated is an [[eval.env]]`, '[[env]]');
  }
  for (const [key, table] of Object.entries({ sft, teacher, gepa })) {
    if (table !== undefined) yield problem(key, isRow, `[${key}]`);
  }
  if (loss === 'opd') yield problem(['loss', 'data.name'], isRow, '"opd"');
  if (evaluation !== undefined && evaluation.env === undefined) {
    const expected = 'at least one [[eval.env]]: beside [data] there is nothing else to evaluate on';
    yield problem(['eval.env', 'eval'], expected, 'nothing');
  }
  for (const key of ['subset', 'split'] as const) {
    if (data[key] === undefined || isHubData(data.name)) continue;
    const expected = 'name = "OWNER/NAME" beside it: a file has no parts';
    yield problem([`data.${key}`, 'data.name'], expected, JSON.stringify(data[key]));
  }
}

/** Requirements of a warm-up on preference pairs. */
export function* preferenceRelations({ sft, trainer }: RatchetConfig): Relations {
  if (sft === undefined) return;
  for (const key of ['subset', 'split'] as const) {
    if (sft[key] === undefined || (sft.data !== undefined && isHubData(sft.data))) continue;
    const expected = 'data = "OWNER/NAME" beside it: a file has no parts';
    yield problem([`sft.${key}`, 'sft.data'], expected, JSON.stringify(sft[key]));
  }
  if (sft.loss !== 'dpo') {
    if (sft.beta === undefined) return;
    yield problem(['sft.beta', 'sft.loss'], 'loss = "dpo" beside it: no other has a reference', sft.beta);
    return;
  }
  if (sft.data === undefined) {
    const expected =
      'data = "FILE.jsonl" beside it, or a dataset of the Hub, with rows {"prompt", "chosen", "rejected"}: demonstrations are no pairs';
    yield problem(['sft.loss', 'sft.data'], expected, '"dpo"');
  }
  if (trainerTraits(trainer).pairs) return;
  const expected = `"cross_entropy": pairs are learned by ${kindsWith(trainers, ({ pairs }) => pairs).are} alone`;
  yield problem(['sft.loss', 'trainer.kind'], expected, `"dpo" with kind = "${trainer.kind}"`);
}
