# SPDX-License-Identifier: Apache-2.0
"""What the tests of the page look at inside of it, as JavaScript: contrasts, names and roles, the focus."""

_LUMINANCE = """
    const probe = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
    const rgb = text => { // any CSS colour, alpha last
        probe.clearRect(0, 0, 1, 1);
        probe.fillStyle = text;
        probe.fillRect(0, 0, 1, 1);
        return [...probe.getImageData(0, 0, 1, 1).data];
    };
    const luminance = ([r, g, b]) => {
        const [x, y, z] = [r, g, b].map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * x + 0.7152 * y + 0.0722 * z;
    };
    const contrast = (a, b) => {
        const [low, high] = [luminance(rgb(a)), luminance(rgb(b))].sort((x, y) => x - y);
        return (high + 0.05) / (low + 0.05);
    };
    const behind = e => {
        for (; e; e = e.parentElement) {
            const colour = getComputedStyle(e).backgroundColor;
            if (rgb(colour)[3] === 255)
                return colour;
        }
        return 'white';
    };
"""

# Every element that is seen and has text of its own, but for buttons that are off: at least 4.5 to 1.
CONTRASTS = "(() => {" + _LUMINANCE + """
    const poor = [];
    let seen = 0;
    for (const e of document.querySelectorAll('body *')) {
        const own = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || e.matches('input, textarea, select');
        if (!own || e.disabled || !e.checkVisibility({visibilityProperty: true}))
            continue;
        seen++;
        const ratio = contrast(getComputedStyle(e).color, behind(e));
        if (ratio < 4.5)
            poor.push(`${e.tagName} ${e.id || e.className}: ${ratio.toFixed(2)}`);
        if (e.matches('input, textarea, select') && contrast(getComputedStyle(e).borderTopColor, behind(e)) < 3)
            poor.push(`border of ${e.id}`);
    }
    return {seen, poor};
})()"""

# The eight colours of kernels: 3 to 1 against the page, 4.5 to 1 against what is written in them, none twice.
KERNEL_COLOURS = "(() => {" + _LUMINANCE + """
    const e = document.body.appendChild(document.createElement('i')), poor = [], colours = new Set();
    const value = name => { e.style.setProperty('color', `var(${name})`); return getComputedStyle(e).color; };
    for (let i = 0; i < 8; i++) {
        const colour = value(`--kernel-${i}`);
        colours.add(colour);
        if (contrast(colour, value('--page')) < 3 || contrast(colour, value('--on-kernel')) < 4.5)
            poor.push(`${i}: ${colour}`);
    }
    e.remove();
    return colours.size === 8 ? poor : [...poor, 'a colour is there twice'];
})()"""

# What a screen reader needs.
NAMES = """(() => {
    const problems = [], all = [...document.querySelectorAll('body *')];
    const text = id => document.getElementById(id)?.textContent.trim();
    for (const e of all) {
        if (e.matches('input, textarea, select, button, a[href], summary, [role=group], [role=region], nav, dialog, ol[tabindex]')) {
            const name = e.getAttribute('aria-label') || text(e.getAttribute('aria-labelledby')) ||
                [...e.labels ?? []].map(l => l.textContent).join(' ').trim() || e.matches('button, a, summary') && e.textContent.trim();
            if (!name)
                problems.push(`no name: ${e.outerHTML.slice(0, 80)}`);
        }
        for (const attribute of ['aria-describedby', 'aria-labelledby', 'for'])
            for (const id of (e.getAttribute(attribute) ?? '').split(/\\s+/).filter(Boolean))
                if (!document.getElementById(id))
                    problems.push(`${attribute} names ${id}, which is not there`);
        if (e.tabIndex > 0)
            problems.push(`a tabindex above 0: ${e.id}`);
        if (e.id && document.querySelectorAll(`[id="${e.id}"]`).length > 1)
            problems.push(`the id ${e.id} twice`);
        for (const attribute of e.getAttributeNames())
            if (attribute.startsWith('on'))
                problems.push(`${attribute} on ${e.tagName}`);
    }
    for (const [what, count] of [['main', 1], ['nav', 1], ['header', 1], ['h1', 1], ['[role=status]', 1]])
        if (document.querySelectorAll(what).length !== count)
            problems.push(`${what}: not ${count}`);
    if (!document.documentElement.lang)
        problems.push('no language');
    let level = 0;
    for (const h of all.filter(e => /^H[1-6]$/.test(e.tagName) && e.checkVisibility())) {
        if (Number(h.tagName[1]) > level + 1)
            problems.push(`a level is left out before ${h.textContent}`);
        level = Number(h.tagName[1]);
    }
    return problems;
})()"""

# Where the focus is, and whether it is drawn. The body has it between the last stop and the first.
FOCUS = """(() => {
    const e = document.activeElement, style = getComputedStyle(e);
    return {what: e === document.body ? 'body' : `${e.tagName} ${e.id || e.textContent.slice(0, 20)}`,
            seen: e === document.body || style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2};
})()"""
