import type { RatchetConfig } from '../index.ts';
import { isHubData } from '../sft.ts';
import { problem, type Relations } from './problem.ts';

/** What has no place in a run whose steps are trained on rows of `[data]`. */
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
