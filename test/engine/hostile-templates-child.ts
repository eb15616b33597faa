/** Renders hostile templates in a process with little memory, and reports how each ended and how long it took. */
import { compileTemplate, renderBounded } from '../../engine/model/template/bounded-template.ts';
import { hostileTemplates } from './hostile-templates.ts';

const [workMax, bytesMax] = process.argv.slice(2).map(Number) as [number, number];
const messages = [{ role: 'user', content: 'x'.repeat(1000) }];
for (const [name, template] of Object.entries(hostileTemplates)) {
  const before = process.cpuUsage();
  let ended: string;
  try {
    ended = `was rendered: ${renderBounded(compileTemplate(template), { messages }, { workMax, bytesMax }).length} letters`;
  } catch (error) {
    ended = (error as Error).message;
  }
  const { user, system } = process.cpuUsage(before);
  console.log(JSON.stringify({ name, ended, seconds: (user + system) / 1e6 }));
}
