import { RatchetError } from '../../core/errors.ts';
import { nearestName } from '../../core/suggest.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { olderForm } from './forms.ts';
import { type Installation, profileOf } from './profiles.ts';

/** What a run asks for that an installation of prime-rl does not have, one sentence each: its first step would say it, after hours of rollouts. */
export function unfitFor(spec: Pick<RunSpec, Asked>, installation: Installation, python: string): string[] {
  const { trainer } = spec;
  if (trainer.kind !== 'prime-rl') return [];
  try {
    const { form } = profileOf(installation, python);
    return [
      ...(form === olderForm ? unfitForOlder(spec) : []),
      ...strangeSettings(installation, form === olderForm ? 'RLTrainerConfig' : 'TrainerConfig', trainer.primeRl),
    ];
  } catch (error) {
    if (error instanceof RatchetError) return [error.message];
    throw error;
  }
}

type Asked = 'trainer' | 'loss' | 'distillation' | 'teacher' | 'turnCredit' | 'sft' | 'data' | 'environments';

/** v0.4.0 has one advantage for all tokens of a row, and no other loss than a policy’s (forms.ts refuses the same of a batch). */
function unfitForOlder({ loss, distillation, teacher, turnCredit, sft, data, environments }: Pick<RunSpec, Asked>) {
  const wrong: readonly (readonly [boolean, string])[] = [
    [sft !== null || data !== undefined || loss.type === 'cross_entropy', 'supervised steps ([sft], [data])'],
    [
      teacher !== null && (distillation !== undefined || (loss.teacherTau ?? 0) !== 0),
      'a teacher whose log probabilities are trained on',
    ],
    [environments.some(({ echo }) => echo !== undefined), 'cross entropy on messages of an environment (echo)'],
    [loss.aggregation !== 'token', `aggregation = ${JSON.stringify(loss.aggregation)}`],
    [turnCredit !== undefined, 'advantages of single turns ([trainer.advantage] turns)'],
  ];
  return wrong.flatMap(([isAsked, what]) =>
    isAsked
      ? [
          `the prime-rl of [trainer] program is of 0.4, which has one advantage for all tokens of a row and nothing else: it has no ${what}. prime-rl’s main branch has`,
        ]
      : [],
  );
}

/** Names in tables of prime-rl’s own file that its settings do not have. Classes that are not known as a whole accept everything. */
function strangeSettings({ types, mentioned }: Installation, name: string, table: object): string[] {
  const found: string[] = [];
  const look = (classes: readonly string[], given: object, path: string): void => {
    const known = classes.flatMap((each) => (types[each] ? [types[each]] : []));
    if (known.length === 0 || known.length < classes.length) return;
    for (const [key, value] of Object.entries(given)) {
      const of = known.flatMap((fields) => (Object.hasOwn(fields, key) ? [fields[key]!] : []));
      if (of.length === 0) {
        if (mentioned.includes(key)) continue; // an older name, perhaps, that is translated
        const meant = nearestName(
          key,
          known.flatMap((fields) => Object.keys(fields)),
        );
        found.push(
          `[${path}] ${key}: prime-rl’s trainer has no such setting${meant === undefined ? '' : `. Did you mean ${meant}?`}`,
        );
      } else if (typeof value === 'object' && value !== null && !Array.isArray(value))
        look(of.flat(), value, `${path}.${key}`);
    }
  };
  look([name], table, 'trainer.prime_rl');
  return found;
}
