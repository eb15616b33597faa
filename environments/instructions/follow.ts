import type { Instruction, KindName, Value } from './checks.ts';

/** An answer that follows every instruction. It is dull, and never wrong. */
export function follow({ topic, instructions }: { topic: string; instructions: readonly Instruction[] }): string {
  const asked = new Map<KindName, Value>(instructions.map(({ kind, value }) => [kind, value]));
  const keys = asked.get('json') as readonly string[] | undefined;
  if (keys) return JSON.stringify(Object.fromEntries(keys.map((key) => [key, topic])));
  const items = asked.get('list') as number | undefined;
  if (items !== undefined) return [topic, 'warm', 'cold', 'good'].slice(0, items).join(', ');

  const first = textOf(asked.get('beginning'));
  const [last, included] = [textOf(asked.get('ending')), textOf(asked.get('include'))];
  const needed = [first, topic, included, last]
    .join(' ')
    .split(' ')
    .filter((word) => word !== '').length;
  const count = (asked.get('words') as number | undefined) ?? needed + 2;
  const filled = ['are', 'good', 'to', 'have', 'here', 'now', 'and', 'then'].slice(0, Math.max(0, count - needed));
  const sentence = [first, topic, included, ...filled, last].filter((word) => word !== '').join(' ');
  const cased = asked.has('lower_case')
    ? sentence.toLowerCase()
    : asked.has('capitals')
      ? sentence.toUpperCase()
      : sentence;
  const ended = `${cased}${asked.has('question') ? '?' : last === '' ? '.' : ''}`;
  return asked.has('quotes') ? `"${ended}"` : ended;
}

function textOf(value: Value | undefined): string {
  return typeof value === 'string' ? value : '';
}
